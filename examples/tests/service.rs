//! Uses the service as its users do: asks it over HTTP, gives it new weights, kills a detector, and ends it
//! by Ctrl-C.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_20-service");

/// The time limit for the slowest machine.
const LONG: Duration = Duration::from_secs(120);

/// The running service. Its workers end with it.
struct Service {
    child: Child,
    said: BufReader<ChildStdout>,
    address: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        // The child has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    fn start() -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["--port", "0", "--rate", "20"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let mut service = Service { child, said, address: String::new() };
        let mut line = String::new();
        service.said.read_line(&mut line).expect("it says where it is");
        service.address =
            line.trim().strip_prefix("the service is at http://").expect("its address").to_owned();
        service
    }

    /// Returns the status and the body of the answer.
    fn ask(&self, method: &str, path: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)
            .expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("the end of the head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer.split_off(end + 4))
    }

    fn text(&self, method: &str, path: &str) -> (u16, String) {
        let (status, body) = self.ask(method, path);
        (status, String::from_utf8(body).expect("text"))
    }

    fn json(&self, method: &str, path: &str) -> Value {
        let (status, body) = self.text(method, path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Asks the tracker again and again until its scene satisfies `is_so`.
    fn tracks_until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let scene = self.json("GET", "/tracks");
            if is_so(&scene) { Ok(scene) } else { Err(scene.to_string()) }
        })
    }

    /// Returns the status of `/health`, and one of the workers that it lists.
    fn worker(&self, name: &str) -> (u16, Value) {
        let (status, body) = self.text("GET", "/health");
        let workers: Value = serde_json::from_str(&body).expect("JSON");
        let workers = workers.as_array().expect("a list");
        (status, workers.iter().find(|worker| worker["name"] == name).expect(name).clone())
    }

    /// Ends it as a service manager does, by a signal to all of its processes. Returns its output until the
    /// end.
    fn stop(mut self) -> String {
        let process = Pid::from_child(&self.child);
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
        let started =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
        let started = started.collect::<Vec<_>>().join(" ");
        let workers = started.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        for worker in workers {
            // As when its terminal is closed too.
            kill_process(worker, Signal::HUP).expect("it runs");
            kill_process(worker, Signal::TERM).expect("it runs");
        }
        kill_process(process, Signal::TERM).expect("it runs");
        let status = until("the end", || self.child.try_wait().expect("a child").ok_or("it runs".to_owned()));
        let mut said = String::new();
        self.said.read_to_string(&mut said).expect("text");
        assert!(status.success(), "it ended with {status}: {said}");
        said
    }
}

/// Tries again until it succeeds.
fn until<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(last) => assert!(Instant::now() < deadline, "{what} did not come: {last}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn it_answers_takes_new_weights_survives_a_crash_and_ends_in_order() {
    let service = Service::start();

    let scene = service.tracks_until("both detectors, and something that moves", |scene| {
        scene["detectors"].as_object().is_some_and(|detectors| detectors.len() == 2)
            && scene["tracks"].as_array().is_some_and(|tracks| !tracks.is_empty())
    });
    assert_eq!(scene["detectors"]["detect.1, life 0"]["weights"], 1, "{scene}");

    let (status, picture) = service.ask("GET", "/frame.png");
    assert_eq!((status, &picture[..8]), (200, &b"\x89PNG\r\n\x1a\n"[..]));
    assert_eq!(picture[16..24], [0, 0, 0, 160, 0, 0, 0, 120], "its width and height");

    assert_eq!(service.worker("detect.1").0, 200);
    let (status, metrics) = service.text("GET", "/metrics");
    assert_eq!(status, 200, "{metrics}");
    // The counters of dropped and missed items exist before anything was dropped or missed.
    let dropped = "tensorpost_items_dropped_total{process=\"camera\",actor=\"camera.0\"}";
    let missed = "tensorpost_items_missed_total{";
    let handled = "tensorpost_messages_handled_total{";
    for line in ["regions_found{actor=\"detect.", "latency_seconds", handled, dropped, missed] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }

    assert_eq!(service.json("POST", "/weights?threshold=0.15")["version"], 2);
    service.tracks_until("the new weights", |scene| {
        scene["detectors"]
            .as_object()
            .is_some_and(|all| all.values().all(|detector| detector["weights"] == 2))
    });
    assert_eq!(service.ask("POST", "/weights?threshold=much").0, 400);

    let killed = service.json("POST", "/crash?worker=detect.0")["process"].clone();
    let scene = service.tracks_until("another life of the detector", |scene| {
        scene["detectors"].get("detect.0, life 1").is_some()
    });
    assert_eq!(
        scene["detectors"]["detect.0, life 1"]["weights"], 2,
        "its first frame has the newest weights: {scene}"
    );
    let worker = until("health", || match service.worker("detect.0") {
        (200, worker) => Ok(worker),
        (_, worker) => Err(worker.to_string()),
    });
    assert!(worker["restarts"] == 1 && worker["process"] != killed, "{worker}");
    assert_eq!(service.ask("POST", "/crash?worker=nobody").0, 404);

    let said = service.stop();
    // The number of workers that are left for the shutdown may vary: those of the pipeline may have ended by
    // themselves.
    for part in [
        "analytics cancelled after ",
        "died and was restarted: detect (replica 0)",
        " workers ended in ",
        "everything was handled",
        "restarted: detect.0, once",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    for part in ["\nended: ", "\nkilled: ", "everything was handled but"] {
        assert!(!said.contains(part), "a worker did not end in order: {said}");
    }
}

#[test]
fn a_load_says_how_fast_it_was() {
    let output = Command::new(PROGRAM).args(["load", "--seconds", "1"]).output().expect("it runs");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "it ended with {}: {said}{errors}", output.status);
    for part in [" frames, ", " frames/s, ", " dropped; latency: median ", ", p99 "] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}
