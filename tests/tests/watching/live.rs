//! The live page of a node: the contents at its paths, and that no client keeps others from it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Hold, Holder};
use tensorpost_tests::wait::{ask, deliver, numbers, until};

/// A node with a live page, and a holder.
struct Scene {
    node: Node,
    holder: Spawned<Holder>,
    address: SocketAddr,
}

impl Scene {
    fn new(builder: Builder) -> Scene {
        let node = builder.start().unwrap();
        let holder = node.spawn::<Holder>(()).name("held").mailbox(4).start().unwrap();
        let address = node.serve("127.0.0.1:0").unwrap();
        Scene { node, holder, address }
    }

    /// Returns the status and the body at a path.
    fn get(&self, path: &str) -> (String, String) {
        says(self.address, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    /// Asks until the body is right: on a busy machine a worker may be late for a snapshot.
    fn until(&self, path: &str, right: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        until("the page is right", || {
            last = self.get(path).1;
            right(&last)
        });
        last
    }

    fn end(self) {
        assert!(self.node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
    }
}

/// Sends this, and reads the answer to its end.
fn says(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    read(&mut stream)
}

fn read(stream: &mut TcpStream) -> (String, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no header in {answer:?}"));
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).expect("a status");
    (status.to_owned(), body.to_owned())
}

fn each_path_says_what_the_node_says(builder: Builder) {
    let scene = Scene::new(builder);
    let stream = scene.node.host_stream().unwrap();
    ask(&scene.node, &scene.holder.address(), Hold::with(1, numbers(&stream, 0, 1024)));

    let series = "tensorpost_messages_handled_total{process=\"held\",actor=\"held\"} 1\n";
    let metrics = scene.until("/metrics", |text| text.contains(series));
    let labels = "process=\"held\",actor=\"held\"";
    for line in [
        format!("tensorpost_handler_seconds_bucket{{{labels},le=\"+Inf\"}} 1\n"),
        format!("tensorpost_handler_seconds_count{{{labels}}} 1\n"),
        format!("tensorpost_mailbox_capacity{{{labels}}} 4\n"),
        "tensorpost_process_up{process=\"node\"} 1\n".to_owned(),
        "tensorpost_pool_held_bytes{process=\"node\",device=\"host\"} 4096\n".to_owned(),
        "# TYPE tensorpost_handler_seconds histogram\n".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line} {metrics}");
    }

    let figures = scene.until("/figures.json", |text| text.contains("\"handled\":1"));
    let figures: Value = serde_json::from_str(&figures).unwrap();
    assert_eq!(figures["node"]["pid"], std::process::id());
    assert_eq!(
        (&figures["actors"][0]["name"], &figures["actors"][0]["capacity"]),
        (&"held".into(), &4.into())
    );
    let own = figures["memory"].as_array().unwrap().iter().find(|pool| pool["process"] == "node").unwrap();
    assert_eq!((&own["held"], &own["holders"][0]["process"]), (&4096.into(), &"held".into()));

    let tables = scene.until("/tables.json", |text| text.contains("4.0 KiB in flight"));
    assert!(tables.contains("[\"actors\",") && tables.contains("{\"text\":\"held\"}"), "{tables}");

    let picture = scene.until("/graph.svg", |text| text.contains("marker-end"));
    assert!(picture.starts_with("<svg ") && picture.contains(">held<") && picture.contains(">node<"));

    let (status, page) = scene.get("/");
    assert!(status.starts_with("200") && page.len() <= 30 << 10 && page.starts_with("<!DOCTYPE html>"));
    assert!(!page.contains("http://") && !page.contains("https://"), "nothing is loaded from elsewhere");
    assert_eq!(scene.get("/livez"), ("200 OK".to_owned(), "ok\n".to_owned()));
    assert_eq!(scene.until("/readyz", |text| text == "ready\n"), "ready\n");
    let (status, body) = scene.get("/secret");
    assert!(status.starts_with("404") && body.contains("/metrics"), "{body}");
    scene.end();
}

/// A node has the metrics that the files for Prometheus and Grafana ask for.
fn the_metrics_that_dashboards_name_are_there(builder: Builder) {
    const FILES: [&str; 2] = [
        include_str!("../../../examples/observe/grafana.json"),
        include_str!("../../../examples/observe/alerts.yml"),
    ];
    let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut named: Vec<&str> = FILES
        .iter()
        .flat_map(|file| file.match_indices("tensorpost_").map(|(at, _)| &file[at..]))
        .map(|rest| rest.split(|letter| !is_of_a_name(letter)).next().unwrap())
        .map(|name| {
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
        })
        .collect();
    named.sort_unstable();
    named.dedup();
    assert!(named.len() >= 15, "{named:?}");

    let scene = Scene::new(builder);
    let stream = scene.node.host_stream().unwrap();
    ask(&scene.node, &scene.holder.address(), Hold::with(1, numbers(&stream, 0, 1024)));
    let metrics = scene.until("/metrics", |text| text.contains("tensorpost_messages_handled_total{"));
    for name in named {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is not in {metrics}");
    }
    scene.end();
}

fn a_node_that_is_not_ready_says_why(builder: Builder) {
    let scene = Scene::new(builder);
    let gate = Gate::new();
    deliver(&scene.node, &scene.holder.address(), Hold::at(0, &gate.door()));
    let arrival = gate.arrival();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| scene.node.shutdown(Duration::from_secs(60)).unwrap());
        until("it says so", || {
            let (status, body) = scene.get("/readyz");
            status.starts_with("503") && body.contains("the node is shutting down")
        });
        assert!(scene.get("/livez").0.starts_with("200"), "it lives while it ends");
        arrival.open();
        assert!(stopping.join().unwrap().is_clean());
    });
    // A snapshot is shown again for a moment.
    until("the program goes on, and the node has ended", || scene.get("/livez").0.starts_with("503"));
    let Scene { node, address, .. } = scene;
    drop(node);
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

fn what_is_no_get_is_refused(builder: Builder) {
    let scene = Scene::new(builder);
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("DELETE / HTTP/1.1\r\n\r\n", "405"),
        ("\u{1}\u{2}\u{3}\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
    ] {
        let (said, _) = says(scene.address, request);
        assert!(said.starts_with(status), "{request:?}: {said}");
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert!(says(scene.address, &long).0.starts_with("431"));
    // Nobody reads the answer.
    for _ in 0..100 {
        let mut stream = TcpStream::connect(scene.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    }
    assert!(scene.get("/livez").0.starts_with("200"));
    ask(&scene.node, &scene.holder.address(), Hold::label(1));
    scene.end();
}

fn a_thousand_connections_that_ask_nothing_keep_nobody_from_it(builder: Builder) {
    let scene = Scene::new(builder);
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect(scene.address).unwrap();
        if number % 2 == 0 {
            // Half of a header, and never the rest. The server may have closed the connection already.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHos");
        }
        silent.push(stream);
        if number % 100 == 99 {
            assert!(scene.get("/livez").0.starts_with("200"));
        }
    }
    ask(&scene.node, &scene.holder.address(), Hold::label(1));
    // The server does not wait for a header that does not come: the remaining clients are told, and all
    // connections end.
    let mut told = 0;
    for mut stream in silent {
        let mut answer = String::new();
        // A reset is an end, too.
        if stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 408") {
            told += 1;
        }
    }
    assert!(told <= 64, "so many are served at a time");
    assert!(scene.get("/livez").0.starts_with("200"));
    scene.end();
}

fn an_address_that_is_taken_is_an_error_and_another_page_is_none(builder: Builder) {
    let scene = Scene::new(builder);
    assert_eq!(scene.node.serve(scene.address).unwrap_err().kind(), ErrorKind::AddrInUse);
    let second = scene.node.serve("127.0.0.1:0").unwrap();
    assert!(says(second, "GET /livez HTTP/1.1\r\n\r\n").0.starts_with("200"));
    assert!(scene.get("/livez").0.starts_with("200"));
    scene.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        each_path_says_what_the_node_says,
        the_metrics_that_dashboards_name_are_there,
        a_node_that_is_not_ready_says_why,
        what_is_no_get_is_refused,
        a_thousand_connections_that_ask_nothing_keep_nobody_from_it,
        an_address_that_is_taken_is_an_error_and_another_page_is_none,
    ]
}
