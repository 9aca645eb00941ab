//! A process that may open no more files loses the descriptors that a peer sends it. That costs only this
//! process: the sender has done nothing wrong. (There is one test, because the limit is the process's.)

use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensorpost_core::os::Seqpacket;

#[test]
fn a_packet_whose_descriptors_find_no_room_is_told_from_one_that_breaks_the_rules() {
    let (sender, receiver) = Seqpacket::pair().expect("descriptors");
    let file = std::fs::File::open("/dev/null").expect("it is there");
    sender.send(b"four of them", &[file.as_fd(); 4]).expect("room");
    sender.send(b"and on", &[]).expect("room");
    sender.send(b"one", &[file.as_fd()]).expect("room");
    let before = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").expect("a process").count() as u64;
    // The directory listing itself had one descriptor open, so there is room for one.
    setrlimit(Resource::Nofile, Rlimit { current: Some(open), ..before }).expect("lower is allowed");
    let mut buffer = Vec::new();
    let received = receiver.recv(&mut buffer).expect("no fault of the sender's");
    assert_eq!((received.starved, received.fds.len(), &buffer[..]), (true, 0, &b"four of them"[..]));
    let received = receiver.recv(&mut buffer).expect("nothing is wrong with it");
    assert_eq!((received.starved, &buffer[..]), (false, &b"and on"[..]));
    setrlimit(Resource::Nofile, before).expect("as it was");
    let received = receiver.recv(&mut buffer).expect("there is room again");
    assert_eq!((received.starved, received.fds.len()), (false, 1));
}
