//! A worker that an attacker has taken over: it does with its descriptors and its control socket what no
//! worker of ours does.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt::{set_socket_linger, socket_type};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;
use tensorpost::device::DeviceId;
use tensorpost::prelude::*;
use tensorpost_core::node::NewActor;

/// An order to the intruder. The reply comes when it is done.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub enum Deed {
    /// Nothing.
    Nothing,
    /// Fill and disturb every descriptor with which others could be rung, or ring it.
    SpoilBells,
    /// Say this to the node this many times, byte for byte.
    Say(Vec<u8>, u32),
    /// Say these to the node, one after the other and over and over, until the node has ended the
    /// conversation. The reply does not wait for that.
    KeepSaying(Vec<Vec<u8>>),
    /// Send the node a descriptor whose close waits, with this message.
    SendLingering(Vec<u8>),
    /// Say this to the node this many times, with four descriptors of memory in each message.
    SayWithMemory(Vec<u8>, u32),
}

/// See the module.
#[derive(Default)]
pub struct Intruder {
    kept: Vec<TcpStream>,
}

impl Actor for Intruder {
    type Context = Context<Self>;
}

impl RemoteActor for Intruder {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Intruder::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Deed>();
    }
}

impl Handler<Deed> for Intruder {
    type Result = MessageResult<Deed>;

    fn handle(&mut self, deed: Deed, _: &mut Context<Self>) -> Self::Result {
        match deed {
            Deed::Nothing => {}
            Deed::SpoilBells => spoil_bells(),
            Deed::Say(message, times) => {
                let _said = (0..times).all(|_| say(&message, &[]));
            }
            Deed::KeepSaying(messages) => {
                let all = move || while messages.iter().all(|message| say(message, &[])) {};
                drop(std::thread::spawn(all));
            }
            Deed::SayWithMemory(message, times) => {
                let memory = tensorpost_core::os::Memfd::create("forged", 4096).expect("memory");
                let (one, _other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
                let memory = memory.as_fd();
                let fds = [memory, memory, memory, memory, one.as_fd()];
                let _said = (0..times).all(|_| say(&message, &fds));
            }
            Deed::SendLingering(message) => {
                let (slow, reader) = lingering();
                self.kept.push(reader);
                let _ = say(&message, &[slow.as_fd()]);
                // If it stayed open here, the last close would be this process's.
                drop(slow_end(slow));
            }
        }
        MessageResult(())
    }
}

/// Returns the control socket, found as a worker finds it.
fn control() -> i32 {
    let variable = std::env::var("TENSORPOST_WORKER").expect("this is a worker");
    variable.split(':').next().and_then(|number| number.parse().ok()).expect("a descriptor")
}

#[expect(unsafe_code, reason = "an intruder knows descriptors by number")]
fn borrow(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the control socket and the numbers that `/proc/self/fd` has listed are open; where one closes
    // meanwhile, a call fails.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Returns the control socket of another process, which is a worker of this one. By it this process speaks to
/// its node in the name of a worker that runs no actors.
///
/// # Errors
/// It is no worker, or the system gives no descriptors of other processes away.
pub fn control_of(worker: Pid) -> io::Result<OwnedFd> {
    let variables = std::fs::read(format!("/proc/{}/environ", worker.as_raw_nonzero()))?;
    let number = variables.split(|&byte| byte == 0).find_map(|variable| {
        let value = str::from_utf8(variable).ok()?.strip_prefix("TENSORPOST_WORKER=")?;
        value.split(':').next()?.parse().ok()
    });
    let number = number.ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_getfd(pidfd_open(worker, PidfdFlags::empty())?, number, PidfdGetfdFlags::empty())?)
}

/// Returns a control message of the kind that the gateway to other hosts alone may send, with this content.
pub fn as_a_gateway(content: &[u8]) -> Vec<u8> {
    // MessagePack: two maps of one, with names, and bytes with a length of 32 bits.
    let length = u32::try_from(content.len()).expect("a short one").to_be_bytes();
    [&b"\x81\xa4Node\x81\xaaNeighbours\xc6"[..], &length, content].concat()
}

/// A request to start an actor, as `Env::spawn` sends it.
#[derive(Serialize)]
struct StartRequest {
    place: Value,
    actor: NewActor,
    restart: Restart,
    spares: u32,
}

/// Returns a request to start an actor with a mailbox of this capacity, of a type that no program has.
pub fn start_request(place: Value, capacity: u32) -> Vec<u8> {
    let actor = NewActor {
        name: None,
        label: Some("x".repeat(10_000)),
        type_name: "y".repeat(10_000),
        type_key: 0,
        args: Vec::new(),
        device: DeviceId::HOST,
        receive_on: None,
        own_thread: true,
        capacity,
        takes: Some((0..1000).collect()),
    };
    let request = StartRequest { place, actor, restart: Restart::never(), spares: 0 };
    rmp_serde::to_vec_named(&request).expect("it is short")
}

/// Sends one control message in its packets. Returns false where the node has ended the conversation.
fn say(message: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    say_by(borrow(control()), message, fds)
}

/// Does the same by this control socket.
pub fn say_by(control: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut parts = message.chunks((64 << 10) - 1).peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        let mut packet = vec![u8::from(!last)];
        packet.extend_from_slice(part);
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if last && !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let packet = [std::io::IoSlice::new(&packet)];
        while let Err(error) = rustix::net::sendmsg(control, &packet, &mut ancillary, SendFlags::NOSIGNAL) {
            use rustix::io::Errno;
            // Too many descriptors are under way until the node has read some.
            if !matches!(error, Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::AGAIN) {
                return false;
            }
            std::thread::yield_now();
        }
    }
    true
}

/// Makes a socket whose close waits because nobody reads what was sent. Also returns the end that does not
/// read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut writer = TcpStream::connect(listener.local_addr().expect("its own")).expect("its own");
    let reader = listener.accept().expect("its own").0;
    set_socket_linger(&writer, Some(Duration::from_secs(600))).expect("a new socket");
    writer.set_nonblocking(true).expect("a new socket");
    while writer.write(&[0; 1 << 16]).is_ok() {}
    writer.set_nonblocking(false).expect("a new socket");
    (writer.into(), reader)
}

/// Lets go of a socket without waiting in this process.
fn slow_end(slow: OwnedFd) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || drop(slow))
}

/// Fills every counter and buffer of a descriptor that could be a doorbell, shuts it down, and makes its
/// writers wait.
fn spoil_bells() {
    let control = control();
    for entry in std::fs::read_dir("/proc/self/fd").expect("a process").flatten() {
        let (Ok(link), Ok(number)) =
            (std::fs::read_link(entry.path()), entry.file_name().to_string_lossy().parse())
        else {
            continue;
        };
        let fd = borrow(number);
        let is_event = link.to_string_lossy().ends_with("[eventfd]");
        if number == control || !(is_event || matches!(socket_type(fd), Ok(SocketType::STREAM))) {
            continue;
        }
        if is_event {
            let mut step = u64::MAX - 1;
            while step > 0 {
                if rustix::io::write(fd, &step.to_ne_bytes()).is_err() {
                    step /= 2;
                }
            }
        } else {
            while rustix::net::send(fd, &[0; 64], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok() {}
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
        if let Ok(flags) = fcntl_getfl(fd) {
            let _ = fcntl_setfl(fd, flags - OFlags::NONBLOCK);
        }
    }
}
