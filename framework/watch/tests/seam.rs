//! A program that names no item of this crate, but depends on `tensorpost`, has all that the crate gives a
//! node.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tensorpost::node::Node;
use tensorpost::observe::{ProgressDisplay, ShownProgress};

#[test]
fn a_node_has_a_live_page_a_trace_progress_and_the_doctors_findings() {
    let path = std::env::temp_dir().join(format!("tensorpost-seam-{}.json", std::process::id()));
    let node = Node::builder().trace(&path).start().expect("a node");
    let address = node.serve("127.0.0.1:0").expect("a live page");
    let mut page = TcpStream::connect(address).expect("a connection");
    page.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    let mut answer = String::new();
    page.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("ok\n"), "{answer}");

    let so_far = node.write_trace(&path).expect("it traces").expect("it is written");
    assert_eq!(so_far.processes, 1);
    let (file, shown) = (File::create(&path).expect("a file"), || Some(ShownProgress::default()));
    drop(ProgressDisplay::plain(shown, file, Duration::from_secs(3600)));
    assert!(std::fs::read_to_string(&path).expect("a line of progress").contains("in flight"));
    std::fs::remove_file(&path).expect("it is there");
    drop(node);
    assert!(std::fs::read_to_string(&path).expect("the whole trace").contains("traceEvents"));
    std::fs::remove_file(&path).expect("it is there");

    let nowhere = Node::builder().worker_program("/is/not/there").start().err().expect("no such program");
    assert!(nowhere.to_string().contains("the doctor finds program"), "{nowhere}");
}
