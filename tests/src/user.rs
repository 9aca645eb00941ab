//! This program again, as another user, which tries everything that another user can try.
//!
//! Root becomes `nobody`. Another user takes one of its subordinate users, where `/etc/subuid` gives it some.
//! For every process outside of a user namespace, a process in it runs as one of those.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{connect, recv, send, socket_with};

/// Set in the program that runs as another user: the attempt that it makes.
const TRIES: &str = "TENSORPOST_TESTS_ANOTHER_USER";
const NOBODY: u32 = 65534;

/// An attempt of another user.
#[derive(Debug)]
pub enum Tries<'a> {
    /// To look at the console of this abstract name, three times.
    Console(&'a str),
    /// To speak to a host at this address as hosts do.
    Host(&'a str),
    /// To be a host: it listens, prints its address, and then prints for each connection how many bytes come.
    /// It does not end.
    ToBeAHost,
}

/// Returns whether this process can become another user.
///
/// # Errors
/// The reason why not.
pub fn possible() -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let tried = Command::new("unshare").args(["--user", "--map-auto", "--setuid", "1", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "only root can be another user, or who has subordinate users: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("only root can be another user, or who has `unshare`: {error}")),
    }
}

/// Makes the attempt as another user. The attempt's report, with the id of the user, comes over the program's
/// standard output.
pub fn another(tries: &Tries<'_>) -> (Child, ChildStdout) {
    let own = std::env::current_exe().expect("this program");
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("/proc/self/exe");
        command.uid(NOBODY).gid(NOBODY);
        command
    } else {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-auto", "--setuid", "1"]).arg(own);
        command
    };
    let tries = match tries {
        Tries::Console(name) => format!("console {name}"),
        Tries::Host(address) => format!("host {address}"),
        Tries::ToBeAHost => "listen".to_owned(),
    };
    let mut child =
        command.env(TRIES, tries).current_dir("/").stdout(Stdio::piped()).spawn().expect("another user");
    let said = child.stdout.take().expect("its output");
    (child, said)
}

/// Makes the attempt as [`another`] does, and waits for its end. Returns whether the attempt was told
/// nothing.
pub fn is_told_nothing(tries: &Tries<'_>) -> bool {
    another(tries).0.wait().expect("it ends").success()
}

/// Becomes another user's program, if this process was started as one.
pub fn be_another_if_told() {
    let Ok(tries) = std::env::var(TRIES) else { return };
    let (what, place) = tries.split_once(' ').unwrap_or((&tries, ""));
    let told = match what {
        "console" => (0..3).map(|_| looks(place)).sum(),
        "host" => {
            let mut stream = TcpStream::connect(place).expect("it listens");
            // The peer may have closed it already.
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            read_all(&mut stream)
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            println!("{}", listener.local_addr().expect("an address"));
            loop {
                let bytes = read_all(&mut listener.accept().expect("somebody comes").0);
                println!("{bytes}");
            }
        }
    };
    std::process::exit(i32::from(told > 0));
}

/// Returns the number of bytes of an answer.
fn looks(name: &str) -> usize {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .expect("a socket");
    connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name")).expect("it listens");
    // The peer may have closed it already.
    let _ = send(&fd, b"\"Look\"", SendFlags::NOSIGNAL);
    match recv(&fd, &mut [0; 1024], RecvFlags::empty()) {
        Ok((_, bytes)) => bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => panic!("{error}"),
    }
}

fn read_all(stream: &mut TcpStream) -> usize {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => said.len(),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => said.len(),
        Err(error) => panic!("{error}"),
    }
}
