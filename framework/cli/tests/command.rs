//! The command, run on a node of this process.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorpost::hosts::Hosts;
use tensorpost::node::Console;
use tensorpost::prelude::*;
use tensorpost_core::limits::{MAX_GRANTED, MAX_TENSORS};
use tensorpost_core::os::named_socket::{Listener, SocketName};

/// Keeps the tensors that it gets, and stands in its handler when told to.
struct Keeper(Vec<Tensor>);

/// "Keep these." The reply is how many are kept.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Keep(Vec<Tensor>);

/// "Stand in your handler until this door opens."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Stand(PathBuf);

impl Actor for Keeper {
    type Context = Context<Self>;
}

impl RemoteActor for Keeper {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Keeper(Vec::new()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Keep>().message::<Stand>();
    }
}

impl Handler<Keep> for Keeper {
    type Result = MessageResult<Keep>;

    fn handle(&mut self, Keep(tensors): Keep, _: &mut Context<Self>) -> Self::Result {
        self.0.extend(tensors);
        MessageResult(self.0.len())
    }
}

impl Handler<Stand> for Keeper {
    type Result = ();

    fn handle(&mut self, Stand(door): Stand, _: &mut Context<Self>) {
        let mut door = UnixStream::connect(door).expect("the test is at the door");
        // An error means that the test has ended.
        let _ = door.read(&mut [0]);
    }
}

/// Returns the command with these arguments and the node of this process as its last.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpost"));
    command.args(arguments).arg(std::process::id().to_string()).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command runs")
}

fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(arguments)).expect("it prints JSON")
}

/// Runs the command until it succeeds with the right output: on a busy machine, a worker may be late for a
/// look, and then `hangs` fails.
fn until(arguments: &[&str], right: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = run(arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && right(&printed) {
            return printed;
        }
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(Instant::now() < deadline, "{arguments:?}: {printed}{failed}");
    }
}

#[tensorpost::test]
fn top_shows_actors_memory_holders_and_links() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let keeper = node.spawn::<Keeper>(()).name("keeper").mailbox(16).start()?;
    let tensor = node.host_stream()?.from_slice(&[1024], &[1.0_f32; 1024])?.freeze();
    assert_eq!(node.block_on(keeper.address().ask(Keep(vec![tensor])))?, 1);

    let known = |printed: &str| printed.contains("MEMORY OF") && !printed.contains("silent");
    let plain = until(&["top", "--once", "--every", "50ms"], known);
    let row = plain.lines().find(|line| line.starts_with("keeper ")).expect("the actor has a row");
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!((words[1], words[2], words[words.len() - 1]), ("keeper", "host", "running"));
    assert!(words.contains(&"0/16"), "{row}");
    assert!(plain.contains("4.0 KiB in flight"), "{plain}");

    let figures = json(&["top", "--once", "--json", "--every", "50ms"]);
    assert_eq!(figures["node"]["pid"], std::process::id());
    assert_eq!(
        (&figures["actors"][0]["name"], &figures["actors"][0]["capacity"]),
        (&"keeper".into(), &16.into())
    );
    assert!(figures["node"]["interval"].as_f64().is_some_and(|interval| interval >= 0.05));
    let pools = figures["memory"].as_array().expect("a list");
    let own = pools.iter().find(|pool| pool["process"] == "node").expect("the node's memory");
    assert_eq!((&own["held"], &own["holders"][0]["process"]), (&4096.into(), &"keeper".into()));
    assert!(figures["links"].as_array().is_some_and(|links| !links.is_empty()));

    let holders = until(&["holders"], |printed| printed.contains("HOLDER"));
    let row = holders.lines().skip_while(|line| !line.starts_with("HOLDER")).nth(1).expect("a holder");
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(words[..5], ["keeper", "node", "host", "4.0", "KiB"], "{holders}");
    Ok(())
}

#[tensorpost::test]
fn holders_names_a_process_that_keeps_all_the_tensors_that_it_may() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let keeper = node.spawn::<Keeper>(()).name("hoarder").start()?;
    let stream = node.host_stream()?;
    let tensors = (0..MAX_TENSORS).map(|_| stream.zeros(DType::U8, &[1]).map(|tensor| tensor.freeze()));
    let batch = tensors.collect::<Result<Vec<_>, _>>()?;
    for batches in 1..=MAX_GRANTED / MAX_TENSORS {
        let kept = node.block_on(keeper.address().ask(Keep(batch.clone())))?;
        assert_eq!(kept, batches * MAX_TENSORS);
    }
    let limit = format!("hoarder holds {MAX_GRANTED} tensors of node, of {MAX_GRANTED} that one process may");
    let printed = until(&["holders"], |printed| printed.contains(&limit));
    assert!(printed.contains("small ones that it keeps can be copies"), "{printed}");
    Ok(())
}

#[tensorpost::test]
fn ps_lists_the_node_and_top_goes_on_until_it_is_stopped() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let _keeper = node.spawn::<Keeper>(()).name("keeper").start()?;
    let pid = Value::from(std::process::id());
    let own = |printed: &str| {
        let nodes: Value = serde_json::from_str(printed).ok()?;
        nodes.as_array()?.iter().find(|node| node["pid"] == pid).cloned()
    };
    // The figures that a watcher gets may be a little older than those that the program has.
    let mut ps = Command::new(env!("CARGO_BIN_EXE_tensorpost"));
    ps.args(["ps", "--json"]);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let printed = String::from_utf8(ps.output()?.stdout)?;
        let own = own(&printed).expect("it is listed");
        if (&own["actors"], &own["workers"], &own["state"]) == (&1.into(), &1.into(), &"running".into()) {
            break;
        }
        assert!(Instant::now() < deadline, "{own}");
    }

    let mut top: Child = command(&["top", "--json", "--every", "10ms"]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(top.stdout.take().expect("it is piped")).lines();
    for _ in 0..3 {
        let line = lines.next().expect("another interval")?;
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
    let stopped = text(&["stop", "--within", "60s"]);
    assert!(stopped.contains("has ended after"), "{stopped}");
    // After the node's end, `top` ends too.
    assert!(lines.all(|line| line.is_ok_and(|line| line.starts_with('{'))));
    assert!(!top.wait()?.success(), "the node has ended, and top says so");
    assert!(node.shutdown(Duration::from_secs(20))?.is_clean());
    assert!(text(&["stop"]).contains("had ended before"));
    Ok(())
}

/// A process that listens at such a name chooses what it shows.
#[tensorpost::test]
fn root_asks_its_own_nodes_unless_it_says_so() -> anyhow::Result<()> {
    const OTHER: u32 = 65533;
    // No process has this number.
    let pid = u32::MAX.to_string();
    let name = format!("tensorpost/{OTHER}/{pid}");
    let listener = Listener::bind(&SocketName::Name(name))?;
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpost"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    };
    let is_listed = |asked: Child| -> anyhow::Result<bool> {
        let nodes: Value = serde_json::from_slice(&asked.wait_with_output()?.stdout)?;
        Ok(nodes.as_array().is_some_and(|nodes| nodes.iter().any(|node| node["uid"] == OTHER)))
    };
    assert!(!is_listed(ask(&["ps", "--json"])?)?);
    assert!(listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it was asked");
    let asked = ask(&["ps", "--json", "--all-users"])?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while listener.accept().is_err() {
        assert!(Instant::now() < deadline, "it was not asked");
        std::thread::yield_now();
    }
    assert!(is_listed(asked)?);
    let output = Command::new(env!("CARGO_BIN_EXE_tensorpost")).args(["log", &pid]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--all-users") && !output.status.success(), "{said}");
    Ok(())
}

#[tensorpost::test]
fn trace_writes_a_file_of_a_node_that_did_not_trace() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let keeper = node.spawn::<Keeper>(()).name("keeper").start()?;
    let folder = std::env::temp_dir().join(format!("tensorpost-cli-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("t.json");
    let output = file.to_str().expect("it is text");
    let mut trace = command(&["trace", "--for", "300ms", "-o", output]).stdout(Stdio::piped()).spawn()?;
    while trace.try_wait()?.is_none() {
        node.block_on(keeper.address().ask(Keep(vec![])))?;
    }
    let printed = String::from_utf8(trace.wait_with_output()?.stdout)?;
    assert!(printed.contains("t.json traced for") && printed.contains("of 2 processes"), "{printed}");
    let read: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let events = read["traceEvents"].as_array().expect("events");
    let handled = events.iter().filter(|event| event["cat"] == "handler").count();
    assert!(handled > 0, "{printed}");
    assert!(events.iter().any(|event| event["args"]["name"] == "actor keeper"));
    let figures = json(&["top", "--once", "--json", "--every", "10ms"]);
    assert_eq!(figures["node"]["tracing"], false);

    let nowhere = run(&["trace", "--for", "1s", "-o", "/there/is/none/t.json"]);
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("no folder /there/is/none"));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

#[tensorpost::test]
fn hangs_names_an_actor_that_stands_in_its_handler() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let keeper = node.spawn::<Keeper>(()).name("keeper").start()?;
    node.block_on(keeper.address().ask(Keep(vec![])))?;
    let nothing = until(&["hangs", "--for", "50ms"], |printed| printed.contains("nothing stands still now"));
    assert!(nothing.contains("hang_limit"), "{nothing}");

    let folder = std::env::temp_dir().join(format!("tensorpost-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let door = folder.join("door");
    let listener = UnixListener::bind(&door)?;
    node.block_on(keeper.address().send(Stand(door)))?;
    let (opened, _) = listener.accept()?;
    node.block_on(keeper.address().send(Keep(vec![])))?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = run(&["hangs", "--for", "50ms"]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if printed.contains("`keeper` in `keeper` does not move: 2 messages are open") {
            assert_eq!(output.status.code(), Some(1));
            break;
        }
        assert!(Instant::now() < deadline, "{printed}");
    }
    drop(opened);
    until(&["hangs", "--for", "50ms"], |printed| printed.contains("nothing stands still now"));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

/// Passes numbers on, and 0 only when this door has opened.
struct Stands(PathBuf);

impl Stage for Stands {
    type Args = PathBuf;
    type In = Number;
    type Out = Number;

    fn create(door: PathBuf, _: &Env) -> anyhow::Result<Self> {
        Ok(Stands(door))
    }

    fn process(&mut self, number: Number, out: &mut Out<Number>) -> anyhow::Result<()> {
        if number.0 == 0 {
            let mut door = UnixStream::connect(&self.0)?;
            // An error means that the test has ended.
            let _ = door.read(&mut [0]);
        }
        out.emit(number);
        Ok(())
    }
}

#[tensorpost::test]
fn hangs_names_the_stage_that_holds_up_a_pipeline_and_no_other() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let door = folder.path().join("door");
    let listener = UnixListener::bind(&door)?;
    let node = Node::builder().start()?;
    // With this limit the actors report ten times a second, and half a second is long.
    let pipeline = Pipeline::new("numbers").hang_limit(Duration::from_millis(200));
    let (input, numbers) = pipeline.input::<Number>("camera");
    let stands = numbers.map("before", Ok).mailbox(1).stage::<Stands>(door).named("stands").mailbox(1);
    let mut results = stands.map("after", Ok).start_here_on(&node)?;
    input.blocking_send(Number(1))?;
    assert_eq!(results.into_iter().next().map(|Number(number)| number), Some(1));
    // It is idle for longer than that, because its source has nothing.
    until(&["hangs", "--for", "1s"], |printed| printed.contains("nothing stands still now"));

    input.blocking_send(Number(0))?;
    let (opened, _) = listener.accept()?;
    // These fill the mailboxes up to the source: the stages before it wait for room.
    (2..8).try_for_each(|number| input.blocking_send(Number(number)))?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let culprit = "pipeline `numbers`: `stands` has been in a call of its own for ";
    let victims = ["`camera", "`before", "`after", "`here"];
    loop {
        let output = run(&["hangs", "--for", "50ms"]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        // On a busy machine, another worker may be late for a look.
        if printed.contains(culprit) && !victims.iter().any(|victim| printed.contains(victim)) {
            assert_eq!(output.status.code(), Some(1));
            break;
        }
        assert!(Instant::now() < deadline, "{printed}");
    }
    drop(opened);
    assert_eq!(results.into_iter().take(7).count(), 7);
    while run(&["hangs", "--for", "50ms"]).status.code() != Some(0) {
        assert!(Instant::now() < deadline, "it is still said to stand");
    }
    drop(input);
    assert!(results.wait()?.is_complete());
    Ok(())
}

#[tensorpost::test]
fn the_log_is_shown_and_followed_until_the_node_ends() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("tensorpost-cli-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("console");
    let node = Node::builder().console(Console::At(path.clone())).start()?;
    let keeper = node.spawn::<Keeper>(()).name("mortal").start()?;
    let log = |more: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpost"));
        command.args(["log", "-n", "1000", more]).arg(&path).stdout(Stdio::piped());
        command
    };
    let mut followed = log("--follow").spawn()?;
    let mut lines = BufReader::new(followed.stdout.take().expect("it is piped")).lines();
    node.supervisor().kill_worker(keeper.worker());
    let line =
        lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ended"))).expect("it is logged")?;
    assert!(line.contains("ERROR tensorpost::node [mortal]: worker `mortal`"), "{line}");
    let printed = String::from_utf8(log("--json").output()?.stdout)?;
    let record: Value =
        printed.lines().find(|line| line.contains("ended")).map(serde_json::from_str).expect("it is")?;
    assert_eq!((&record["worker"], &record["severity"]), (&"mortal".into(), &"Error".into()));
    drop(node);
    assert!(followed.wait()?.success());
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

#[test]
fn what_cannot_be_is_an_error_that_says_what_to_do() {
    let error = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tensorpost")).args(arguments).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(error(&["top", "1"]).contains("process 1 is no node"));
    assert!(error(&["top", "blur"]).contains("neither a process id nor the path"));
    assert!(error(&["top", "/there/is/none"]).contains("no node answers at /there/is/none"));
    assert!(error(&["top", "--every", "soon", "1"]).contains("write 5s, 500ms or 2m"));
}

/// The variable that makes a host of the next tests wait for a signal.
const WAITS: &str = "TENSORPOST_TEST_WAITS";

/// Runs as a host of the next tests; does nothing where the test's program was not started as one.
#[tensorpost::test]
fn a_host_that_up_has_started() -> anyhow::Result<()> {
    let Some(hosts) = Hosts::from_environment()? else { return Ok(()) };
    let node = Node::builder().hosts(hosts.agents_serve()).start()?;
    let hosts = node.await_hosts(2, Duration::from_secs(60))?;
    let keeper = node.spawn::<Keeper>(()).on(&hosts[1]).start()?;
    let said =
        format!("{} hosts, {} kept there", hosts.len(), node.block_on(keeper.address().ask(Keep(vec![])))?);
    let report = if std::env::var_os(WAITS).is_some() {
        // The first poll makes the node listen for signals: a test sends one when it has read the line.
        let says = async {
            println!("{said}");
            std::future::pending().await
        };
        node.run_until_ctrl_c_or(says, Duration::from_secs(20))?
    } else {
        println!("{said}");
        node.shutdown(Duration::from_secs(20))?
    };
    anyhow::ensure!(report.is_clean());
    println!("drained");
    Ok(())
}

/// Returns `tensorpost up` with two hosts, which a script in place of ssh starts on this machine; the script
/// is in this folder.
fn up_with_two_hosts(folder: &Path, more: &[&str]) -> anyhow::Result<Command> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    // The last two arguments are the host and its command.
    std::fs::write(folder.join("ssh"), "while [ $# -gt 2 ]; do shift; done\nexec sh -c \"$2\"\n")?;
    let mut up = Command::new(env!("CARGO_BIN_EXE_tensorpost"));
    up.args(["up", "-H", "localhost,localhost", "--port", &port, "--ssh"]);
    up.arg(format!("sh {}", folder.join("ssh").display())).args(more).arg("--").arg(std::env::current_exe()?);
    up.args(["--exact", "a_host_that_up_has_started", "--nocapture"]).stdin(Stdio::null());
    Ok(up)
}

#[test]
fn up_makes_one_node_of_two_hosts() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let output = up_with_two_hosts(folder.path(), &[])?.output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("2 hosts, 0 kept there"), "{out}{err}");
    // The first host is the head, and the second is reported when it has joined.
    assert!(err.contains("`localhost` is the head") && err.contains(": 2 of 2\n"), "{err}");
    assert!(err.contains("`localhost#2` has joined as host 1"), "{err}");
    Ok(())
}

/// This run has a certificate and no key.
#[test]
fn ctrl_c_drains_a_node_that_up_has_started() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hosts/tests/certificates");
    let file = |name: &str| folder.path().join(name).display().to_string();
    for name in ["authority.pem", "host.pem", "host.key"] {
        std::fs::copy(certificates.join(name), file(name))?;
        std::fs::set_permissions(file(name), std::fs::Permissions::from_mode(0o600))?;
    }
    let (ca, cert, key) = (file("authority.pem"), file("host.pem"), file("host.key"));
    let waits = format!("{WAITS}=yes");
    let more = ["--ca", &ca, "--cert", &cert, "--cert-key", &key, "--env", &waits];
    let mut up = up_with_two_hosts(folder.path(), &more)?;
    let mut up = up.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(up.stdout.take().expect("it is piped")).lines();
    let mut err = up.stderr.take().expect("it is piped");
    let is_up = lines.any(|line| line.is_ok_and(|line| line.contains("2 hosts, 0 kept there")));
    let done = Command::new("kill").args(["-INT", &up.id().to_string()]).status()?;
    let rest = lines.collect::<Result<Vec<_>, _>>()?.join("\n");
    let mut said = String::new();
    err.read_to_string(&mut said)?;
    assert!(is_up && done.success(), "{said}");
    assert!(up.wait()?.success() && rest.contains("| drained"), "{rest}{said}");
    assert!(!said.contains("killed") && !said.contains("goes on without the head"), "{said}");
    Ok(())
}
