//! A flood of connections by strangers. The tests of nodes on two hosts (`tests/tests/hosts`) use it too.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::sockopt::{set_ipv6_freebind, set_socket_linger};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Strangers from a thousand addresses, four connections each, which are remade as soon as they are closed.
pub(super) struct Flood(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Flood {
    /// Floods the listener at `to`; `from` returns the addresses of the strangers, by number.
    pub(super) fn start(to: SocketAddr, from: fn(u16) -> IpAddr) -> Self {
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).expect("its own limit");
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let epoll = epoll::create(CreateFlags::CLOEXEC).expect("a descriptor");
            let make = |number: usize| {
                let socket = stranger(number % 4, from((number / 4) as u16), to);
                let ends = EventFlags::RDHUP | EventFlags::HUP;
                epoll::add(&epoll, &socket, EventData::new_u64(number as u64), ends).expect("it is new");
                socket
            };
            let mut all: Vec<_> = (0..4000).map(make).collect();
            let mut events = Vec::with_capacity(64);
            let a_while = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            while !until.load(Relaxed) {
                let _ = epoll::wait(&epoll, spare_capacity(&mut events), Some(&a_while));
                for event in events.drain(..) {
                    let number = event.data.u64() as usize;
                    all[number] = make(number);
                }
            }
        });
        Flood(ends, Some(thread))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.1.take().map(JoinHandle::join).expect("it runs").expect("it ends");
    }
}

/// Makes a stranger's connection, which sends nothing, too little, an invalid proof, or the start of TLS.
fn stranger(kind: usize, from: IpAddr, to: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, flags, None).expect("a socket");
    // It leaves no state behind in the kernel.
    set_socket_linger(&socket, Some(Duration::ZERO)).expect("an option");
    if to.is_ipv6() {
        // The addresses of a whole network lead to this machine, and none of them is an interface's.
        set_ipv6_freebind(&socket, true).expect("an option");
    }
    bind(&socket, &SocketAddr::from((from, 0))).expect("an address of this machine");
    // An error means only that the listener has gone.
    let _ = connect(&socket, &to);
    let said: &[u8] = [&[][..], b"M", &[b'L'; 49], &[0x16, 3, 1, 2, 0, 1]][kind];
    let _ = send(&socket, said, SendFlags::NOSIGNAL);
    socket
}
