//! TCP, with blocking calls. A connection begins with the number of bytes of a message, and whether they come
//! back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

/// Runs the other side of a connection, until it ends.
pub(super) fn serve(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0; 9];
    stream.read_exact(&mut first)?;
    let [length @ .., back] = first;
    let length = u64::from_le_bytes(length).min(1 << 30) as usize;
    let mut buffer = vec![0; length];
    loop {
        if back == 1 {
            if stream.read_exact(&mut buffer).is_err() {
                return Ok(());
            }
            stream.write_all(&buffer)?;
        } else if stream.read(&mut buffer)? == 0 {
            return Ok(stream.write_all(&[1])?);
        }
    }
}

fn begin(stream: &mut TcpStream, bytes: usize, back: bool) -> std::io::Result<()> {
    let mut first = (bytes as u64).to_le_bytes().to_vec();
    first.push(u8::from(back));
    stream.write_all(&first)
}

pub(super) fn trips(mut stream: TcpStream, count: u64, bytes: usize) -> anyhow::Result<Vec<u64>> {
    begin(&mut stream, bytes, true)?;
    let mut buffer = vec![7; bytes];
    let mut took = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let since = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        took.push(since.elapsed().as_nanos() as u64 / 2);
    }
    Ok(took)
}

pub(super) fn pour(mut stream: TcpStream, count: u64, bytes: usize) -> anyhow::Result<()> {
    begin(&mut stream, bytes, false)?;
    let buffer = vec![7; bytes];
    for _ in 0..count {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // The byte comes once all has been read there.
    Ok(stream.read_exact(&mut [0])?)
}
