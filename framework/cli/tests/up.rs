//! `tensorpost up`, with a script in place of ssh that runs commands on this machine: each host has a
//! temporary folder of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Takes the arguments of ssh: options, a host, and words for its shell.
const SSH: &str = r#"#!/bin/sh
while :; do
    case $1 in
    -T) shift ;;
    -o) shift 2 ;;
    -*) echo "no such option: $1" >&2; exit 2 ;;
    *) break ;;
    esac
done
host=${1#*@}
shift
# Ctrl-C would reach it otherwise, and it would end before the programs have.
read -r pid _ _ _ group _ </proc/$$/stat
[ "$pid" = "$group" ] || { echo "ssh has no process group of its own" >&2; exit 2; }
[ "$host" != nowhere ] || { echo "ssh: connect to host nowhere port 22: No route to host" >&2; exit 255; }
export TMPDIR="$FARM/$host" PATH="$FARM/bin-$host:$PATH"
# Of an earlier run, say.
export TENSORPOST_HEAD=old TENSORPOST_LISTEN=old TENSORPOST_KEY_FILE=old TENSORPOST_CA_FILE=old
mkdir -p "$TMPDIR"
echo "welcome to $host"
exec sh -c "$*"
"#;

/// A program that prints that it runs, and waits until it is asked to end. It takes a while over its end, as
/// a head does, and then writes where the test still reads when nobody else does.
const PATIENT: &str = r#"
exec 9>"$FARM/alive"
trap 'kill "$!"; [ "$TENSORPOST_HEAD" ] || sleep 0.3; echo "$TENSORPOST_HEAD drained" >&9; echo drained; exit 0' TERM
echo runs
sleep 60 >/dev/null 2>&1 9>&- &
wait
"#;

struct Farm(TempDir);

impl Farm {
    fn new() -> Self {
        let farm = Farm(tempfile::tempdir().expect("a folder"));
        farm.program("ssh", SSH);
        farm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path
    }

    fn up(&self, arguments: &[&str]) -> Command {
        // A shell cannot trap a signal that is ignored at its start, as SIGHUP is under nohup.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_tensorpost")]);
        command.arg("up").arg("--ssh").arg(self.path("ssh")).args(arguments).current_dir(self.0.path());
        command.env("FARM", self.0.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let Output { status, stdout, stderr } = self.up(arguments).output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("it is text");
        Said { status: status.code(), out: text(stdout), err: text(stderr) }
    }

    /// Returns the number of files left in the temporary folder of a host.
    fn left(&self, host: &str) -> usize {
        fs::read_dir(self.path(host)).expect("it was there").count()
    }

    /// Starts two hosts with programs that wait, and returns once both run. The last value blocks until they
    /// have ended.
    fn patient(&self, more: &[&str]) -> (Child, impl BufRead, impl FnOnce() -> String + use<>) {
        let alive = self.path("alive");
        assert!(Command::new("mkfifo").arg(&alive).status().expect("it runs").success());
        let listener = std::thread::spawn(move || {
            let mut heard = String::new();
            // The pipe opens when the first program opens it, and ends with the last.
            File::open(alive).expect("a pipe").read_to_string(&mut heard).expect("it is read");
            heard
        });
        let mut arguments = vec!["-H", "a,b", "--head", "there"];
        arguments.extend(more);
        arguments.extend(["--", "sh", "-c", PATIENT]);
        let mut up = self.up(&arguments).stderr(Stdio::null()).spawn().expect("it runs");
        let mut lines = BufReader::new(up.stdout.take().expect("its output"));
        let mut running = 0;
        while running < 2 {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).expect("it is read"), 0, "it has ended");
            running += usize::from(line.ends_with("| runs\n"));
        }
        (up, lines, move || listener.join().expect("it has ended"))
    }
}

struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    /// Returns the lines of a host, without its name.
    fn of(&self, host: &str) -> Vec<&str> {
        let name = format!("{host} | ");
        self.out.lines().filter_map(|line| line.strip_prefix(&name)).collect()
    }
}

fn signal(name: &str, up: &Child) {
    let done = Command::new("kill").arg(format!("-{name}")).arg(up.id().to_string()).status();
    assert!(done.expect("it runs").success());
}

#[test]
fn each_host_gets_the_arguments_the_key_and_its_part() {
    let farm = Farm::new();
    let program = r#"
stat -c '%s %a' "$TENSORPOST_KEY_FILE"; cksum <"$TENSORPOST_KEY_FILE"; echo "$TENSORPOST_LISTEN/$TENSORPOST_HEAD/$X$TENSORPOST_CA_FILE"; pwd
printf '%s;' "$@"; printf 'to err\n' >&2"#;
    let arguments = ["a b", "it's \"so\"", "two\nlines", "$HOME", ""];
    let mut all = vec!["-H", "a,me@b", "--port", "7200", "--env", "X=y z", "--", "sh", "-c", program, "sh"];
    all.extend(arguments);
    let said = farm.run(&all);
    assert_eq!(said.status, Some(0), "{}", said.err);
    let (a, b) = (said.of("a   "), said.of("me@b"));
    let folder = farm.0.path().canonicalize().expect("a folder").display().to_string();
    let given = format!("{};", arguments.join(";"));
    let tail: Vec<_> = given.lines().collect();
    for (found, part, host) in [(&a, ":7200//y z", "a"), (&b, "/a:7200/y z", "b")] {
        assert_eq!(found[..2], [format!("welcome to {host}").as_str(), "32 600"], "{}", said.out);
        assert_eq!(found[3..5], [part, folder.as_str()]);
        assert_eq!(found[5..], tail);
        assert_eq!(farm.left(host), 0);
    }
    assert_eq!(a[2], b[2], "one key for all");
    assert!(said.err.contains("a    | to err") && said.err.contains("me@b | to err"), "{}", said.err);
    assert!(said.err.contains("the program runs on a, me@b"), "{}", said.err);

    fs::write(farm.path("key"), [7; 32]).expect("written");
    fs::set_permissions(farm.path("key"), fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::write(farm.path("hosts"), "# ours\na\nb\n").expect("written");
    let own = [
        "--hostfile",
        "hosts",
        "--key",
        "key",
        "--",
        "sh",
        "-c",
        "cmp \"$TENSORPOST_KEY_FILE\" key && echo same",
    ];
    let said = farm.run(&own);
    assert_eq!((said.of("a")[1], said.of("b")[1]), ("same", "same"), "{}", said.err);
}

#[test]
fn a_program_is_copied_checked_and_removed() {
    let farm = Farm::new();
    // The program is larger than one read.
    let text = format!("#!/bin/sh\necho \"$0 $1\"\nexit 0\n{}", "#".repeat(200_000));
    farm.program("my prog", &text);
    let said = farm.run(&["-H", "a,b", "--copy", "--", "./my prog", "x"]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    for host in ["a", "b"] {
        let line = said.of(host)[1];
        let there = farm.path(host).display().to_string();
        assert!(line.starts_with(&there) && line.ends_with("/my prog x"), "{line}");
        assert_eq!(farm.left(host), 0);
    }
    // On one host the program arrives changed.
    farm.program(
        "bin-b/dd",
        "#!/bin/sh\ncase $* in *count=3*) /bin/dd \"$@\" | tr '#' '!' ;; *) exec /bin/dd \"$@\" ;; esac\n",
    );
    let said = farm.run(&["-H", "a,b", "--copy", "--", "./my prog"]);
    assert_eq!(said.status, Some(2));
    assert!(said.err.contains("b | the copy in ") && said.err.contains("`b` was reached"), "{}", said.err);
    assert_eq!((said.of("a"), farm.left("a"), farm.left("b")), (vec!["welcome to a"], 0, 0));
}

#[test]
fn a_host_that_cannot_be_reached_starts_nothing() {
    let farm = Farm::new();
    let said = farm.run(&["-H", "a,nowhere", "--", "sh", "-c", "echo it ran"]);
    assert_eq!(said.status, Some(2));
    assert!(
        said.err.contains("nowhere | ssh: connect to host nowhere port 22: No route to host"),
        "{}",
        said.err
    );
    assert!(
        said.err.contains("`nowhere` cannot be reached") && said.err.contains("BatchMode"),
        "{}",
        said.err
    );
    assert!(!said.out.contains("it ran") && farm.left("a") == 0, "{}", said.out);

    let said = farm.run(&["-H", "a", "--dir", "/is/not/there", "--", "true"]);
    assert!(said.status == Some(2) && said.err.contains("there is no folder /is/not/there"), "{}", said.err);
    let said = farm.run(&["-H", "a", "--", "./is-not-there"]);
    assert!(said.status == Some(2) && said.err.contains("--copy brings it along"), "{}", said.err);
    let said = farm.run(&["-H", "a,-oProxyCommand=x", "--", "true"]);
    assert!(said.status == Some(2) && said.err.contains("is no host"), "{}", said.err);
    let none = Command::new(env!("CARGO_BIN_EXE_tensorpost"))
        .args(["up", "-H", "a", "--ssh", "/is/not/there", "--", "true"])
        .output();
    let err = String::from_utf8(none.expect("it runs").stderr).expect("text");
    assert!(err.contains("install OpenSSH's client"), "{err}");
}

#[test]
fn what_cannot_be_run_on_a_host_starts_nothing() {
    let farm = Farm::new();
    fs::write(farm.path("text"), "text").expect("written");
    for named in ["./text", "./a-folder"] {
        fs::create_dir_all(farm.path("a-folder")).expect("a folder");
        let said = farm.run(&["-H", "a", "--", named]);
        assert!(said.status == Some(2) && said.err.contains("`chmod +x` it"), "{}", said.err);
        assert_eq!(farm.left("a"), 0);
    }
    // The PATH that `--env` gives is the one that counts.
    farm.program("tools/measure", "#!/bin/sh\necho measured");
    let said = farm.run(&["-H", "a", "--", "measure"]);
    assert!(said.status == Some(2) && said.err.contains("measure is no program"), "{}", said.err);
    let path = format!("PATH={}:/usr/bin:/bin", farm.path("tools").display());
    let said = farm.run(&["-H", "a", "--env", &path, "--", "measure"]);
    assert_eq!((said.status, said.of("a")[1]), (Some(0), "measured"), "{}", said.err);
    // An ELF file for another machine.
    let mut elf = [0; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let (number, name) = if cfg!(target_arch = "x86_64") { (183, "aarch64") } else { (62, "x86_64") };
    elf[18] = number;
    farm.program("other", "");
    fs::write(farm.path("other"), elf).expect("written");
    let said = farm.run(&["-H", "a", "--copy", "--", "./other"]);
    assert!(
        said.status == Some(2) && said.err.contains(&format!("the program is for {name}")),
        "{}",
        said.err
    );
    for (wrong, why) in [
        ("TENSORPOST_HEAD=b", "--env TENSORPOST_HEAD is what this command says itself"),
        ("1=x", "no name of a variable"),
        ("TENSORPOST_KEY_FILE=/k", "leave one out"),
    ] {
        let said = farm.run(&["-H", "a", "--key", "/dev/null", "--env", wrong, "--", "true"]);
        assert!(said.status == Some(2) && said.err.contains(why), "{}", said.err);
    }
}

/// The script's own variables do not reach the program.
#[test]
fn variables_of_any_name_arrive() {
    let farm = Farm::new();
    let names = ["head", "place", "status", "group", "word", "mark", "folder"];
    let mut all = vec!["-H".to_owned(), "a".to_owned()];
    all.extend(names.iter().flat_map(|name| ["--env".to_owned(), format!("{name}=my {name}")]));
    let print = names.map(|name| format!("printenv {name}")).join("; ");
    all.extend(["--", "sh", "-c", &print].map(String::from));
    let said = farm.run(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(said.of("a")[1..], names.map(|name| format!("my {name}")), "{}", said.err);
    assert_eq!((said.status, farm.left("a")), (Some(0), 0));
}

#[test]
fn hosts_have_certificates_instead_of_a_key() {
    let farm = Farm::new();
    let pem = |what: &str, text: &str| format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n");
    fs::write(farm.path("ca.pem"), pem("CERTIFICATE", "authority")).expect("written");
    for host in ["a", "b"] {
        fs::write(farm.path(&format!("{host}.pem")), pem("CERTIFICATE", host)).expect("written");
        let key = farm.path(&format!("{host}.key"));
        fs::write(&key, pem("PRIVATE KEY", &format!("key of {host}"))).expect("written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
    }
    let program = r#"echo "$TENSORPOST_ADVERTISE/$TENSORPOST_KEY_FILE"
cat "$TENSORPOST_CA_FILE" "$TENSORPOST_CERT_FILE" "$TENSORPOST_CERT_KEY_FILE"; stat -c %a "$TENSORPOST_CERT_KEY_FILE""#;
    let files = ["--ca", "ca.pem", "--cert", "{host}.pem", "--cert-key", "{host}.key"];
    let mut all = vec!["-H", "a,me@b"];
    all.extend(files);
    all.extend(["--", "sh", "-c", program]);
    let said = farm.run(&all);
    assert_eq!(said.status, Some(0), "{}", said.err);
    for (host, label) in [("a", "a   "), ("b", "me@b")] {
        let lines: Vec<_> = said.of(label).into_iter().filter(|line| !line.starts_with("-----")).collect();
        let own = [
            format!("{host}/"),
            "authority".to_owned(),
            host.to_owned(),
            format!("key of {host}"),
            "600".to_owned(),
        ];
        assert_eq!(lines[1..], own, "{}", said.out);
        assert_eq!(farm.left(host), 0);
    }
    // The files are on the hosts already: nothing is brought.
    let own = [
        "--env",
        "TENSORPOST_CA_FILE=/x",
        "--",
        "sh",
        "-c",
        "echo \"$TENSORPOST_CA_FILE/$TENSORPOST_KEY_FILE\"",
    ];
    let said = farm.run(&[&["-H", "a"], &own[..]].concat());
    assert_eq!(said.of("a")[1], "/x/", "{}", said.err);
    let said = farm.run(&["-H", "a", "--ca", "ca.pem", "--", "true"]);
    assert!(said.status == Some(2) && said.err.contains("--cert"), "{}", said.err);
    let said =
        farm.run(&["-H", "a,c", files[0], files[1], files[2], files[3], files[4], files[5], "--", "true"]);
    assert!(said.status == Some(2) && said.err.contains("--cert c.pem"), "{}", said.err);
}

#[test]
fn it_is_said_when_a_host_has_joined() {
    let farm = Farm::new();
    // The other host joins when the head has joined.
    let program = r#"
case $TENSORPOST_HEAD in
'') echo 0 >"$TENSORPOST_JOINED_FILE"; echo >"$FARM/listens"; cat "$FARM/joined" ;;
*) cat "$FARM/listens"; echo 1 >"$TENSORPOST_JOINED_FILE"; echo >"$FARM/joined" ;;
esac"#;
    for pipe in ["listens", "joined"] {
        assert!(Command::new("mkfifo").arg(farm.path(pipe)).status().expect("it runs").success());
    }
    let said = farm.run(&["-H", "a,b", "--", "sh", "-c", program]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    for what in ["`a` is the head, and takes the others in", "`b` has joined as host 1", ": 2 of 2\n"] {
        assert!(said.err.contains(what), "{}", said.err);
    }
    assert!(!said.out.contains("tensorpost-up-") && !said.out.contains('\x1b') && !said.err.contains('\x1b'));
    assert_eq!((farm.left("a"), farm.left("b")), (0, 0));
}

/// An example is a host with another build: the head would wait for it for two minutes.
#[test]
fn a_host_that_fails_before_it_has_joined_ends_the_others() {
    let farm = Farm::new();
    let program = "case $TENSORPOST_HEAD in '') exec sleep 60 ;; *) exit 3 ;; esac";
    let said = farm.run(&["-H", "a,b", "--", "sh", "-c", program]);
    assert_eq!(said.status, Some(3), "{}", said.err);
    assert!(said.err.contains("`b` will not join, so all are asked to end"), "{}", said.err);
    assert!(said.err.contains("`a` has ended with status 143 (SIGTERM)"), "{}", said.err);
    assert!(
        !said.err.contains("Terminated") && said.err.contains("`b` was the first to fail"),
        "{}",
        said.err
    );
}

#[test]
fn what_does_not_end_is_killed_with_all_that_it_has_started() {
    let farm = Farm::new();
    let alive = farm.path("alive");
    assert!(Command::new("mkfifo").arg(&alive).status().expect("it runs").success());
    let program = "trap '' TERM; exec 9>\"$FARM/alive\"; sleep 60 & echo runs; sleep 60; sleep 60";
    for signals in [1, 2] {
        let within = if signals == 1 { "300ms" } else { "1h" };
        let mut up =
            farm.up(&["-H", "a", "--within", within, "--", "sh", "-c", program]).spawn().expect("it runs");
        // The pipe ends when all processes that have it have ended.
        let mut alive = File::open(&alive).expect("a pipe");
        let mut lines = BufReader::new(up.stdout.take().expect("its output")).lines();
        assert!(lines.any(|line| line.expect("it is read").ends_with("| runs")));
        let mut notes = BufReader::new(up.stderr.take().expect("its notes")).lines();
        for count in 1..=signals {
            signal("INT", &up);
            let told =
                notes.any(|line| line.expect("it is read").contains("press Ctrl-C again") || count == 2);
            assert!(told, "it says what the next one does");
        }
        let began = Instant::now();
        assert_eq!(alive.read_to_string(&mut String::new()).expect("it is read"), 0);
        assert!(began.elapsed() < Duration::from_secs(30), "what it has started went on to its own end");
        assert_eq!(up.wait().expect("it ends").code(), Some(137));
        assert_eq!(farm.left("a"), 0);
    }
}

#[test]
fn the_first_failure_is_the_status() {
    let farm = Farm::new();
    // 255 is also the status of a failed ssh.
    let program = "case $TENSORPOST_HEAD in '') exit 0 ;; *) exit 255 ;; esac";
    let said = farm.run(&["-H", "a,b", "--", "sh", "-c", program]);
    assert_eq!(said.status, Some(255));
    assert!(said.err.contains("`b` was the first to fail, with status 255"), "{}", said.err);
    assert!(!said.err.contains("lost"), "{}", said.err);
    let said = farm.run(&["-H", "a", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!((said.status, farm.left("a")), (Some(137), 0), "{}", said.err);
}

#[test]
fn ctrl_c_drains_the_head_and_then_the_others() {
    let farm = Farm::new();
    let (mut up, mut lines, ended) = farm.patient(&["--within", "1s"]);
    signal("INT", &up);
    assert_eq!(ended(), " drained\nthere:7117 drained\n");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("it is read");
    assert_eq!(rest, "a | drained\nb | drained\n");
    assert_eq!(up.wait().expect("it ends").code(), Some(0));
    assert_eq!((farm.left("a"), farm.left("b")), (0, 0));
}

/// A killed `up` cannot send a last word: the hosts notice the end of their inputs.
#[test]
fn the_death_of_up_ends_all_programs_in_order() {
    let farm = Farm::new();
    let (mut up, lines, ended) = farm.patient(&["--within", "1s"]);
    let began = Instant::now();
    signal("KILL", &up);
    up.wait().expect("it ends");
    // Nobody reads the output of the programs any more.
    drop(lines);
    assert_eq!(ended(), " drained\nthere:7117 drained\n");
    assert!(began.elapsed() < Duration::from_secs(15), "it was the silence that has ended them, after 20 s");
}

/// A silent input is what a host sees of a connection that is cut without notice.
#[test]
fn silence_ends_all_programs() {
    let farm = Farm::new();
    let (mut up, _lines, ended) = farm.patient(&["--within", "1s", "--beat", "300ms"]);
    signal("STOP", &up);
    assert_eq!(ended(), " drained\nthere:7117 drained\n");
    signal("CONT", &up);
    assert_eq!(up.wait().expect("it ends").code(), Some(0));
    assert_eq!((farm.left("a"), farm.left("b")), (0, 0));
}

/// The beats keep it running.
#[test]
fn a_program_that_is_looked_after_is_left_alone() {
    let farm = Farm::new();
    let said = farm.run(&["-H", "a", "--beat", "100ms", "--", "sh", "-c", "sleep 1.2; echo done"]);
    assert_eq!((said.status, said.of("a")[1]), (Some(0), "done"), "{}", said.err);
}

/// sshd sends this signal where a connection ends.
#[test]
fn a_hangup_on_a_host_asks_its_program_to_end() {
    let farm = Farm::new();
    // Use no `wait`: a shell may miss a signal that comes just as `wait` begins.
    let program =
        "trap 'echo asked; exit 0' TERM; kill -HUP $PPID; for turn in $(seq 300); do sleep 0.1; done";
    let said = farm.run(&["-H", "a", "--", "sh", "-c", program]);
    assert_eq!((said.status, said.of("a").get(1).copied()), (Some(0), Some("asked")), "{}", said.err);
}

#[test]
fn what_a_program_leaves_behind_is_not_waited_for() {
    let farm = Farm::new();
    let said = farm.run(&["-H", "a", "--", "sh", "-c", "sleep 20 & echo \"$! $(date +%s)\""]);
    let (left, began) = said.of("a")[1].split_once(' ').expect("two numbers");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    assert!(now < began.parse::<u64>().expect("a number") + 15, "{}", said.err);
    assert_eq!((said.status, farm.left("a")), (Some(0), 0), "{}", said.err);
    assert!(Command::new("kill").arg(left).status().expect("it runs").success());
}

#[test]
fn a_dry_run_shows_what_would_be_run() {
    let farm = Farm::new();
    let said = farm.run(&["-H", "a,b", "--dry-run", "--dir", "/my jobs", "--", "./prog", "it's"]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    let lines: Vec<_> = said.out.lines().collect();
    assert_eq!(lines.len(), 4, "{}", said.out);
    assert!(lines[0].contains("BatchMode=yes") && lines[0].contains("exec sh -c "), "{}", lines[0]);
    let shown =
        |variable: &str| format!("    cd '/my jobs' && TENSORPOST_KEY_FILE=key {variable} ./prog \"it's\"");
    assert_eq!((lines[1], lines[3]), (&*shown("TENSORPOST_LISTEN=:7117"), &*shown("TENSORPOST_HEAD=a:7117")));
    assert!(!farm.path("a").exists(), "nothing was run");
    // Each host listens at its own address.
    let bound = ["-H", "10.0.0.1,me@::1", "--bind", "{host}", "--dry-run"];
    let said = farm.run(&[&bound[..], &["--", "./prog"]].concat());
    let lines: Vec<_> = said.out.lines().collect();
    for (line, variables) in [
        (1, "TENSORPOST_LISTEN=:7117 TENSORPOST_BIND=10.0.0.1 ./prog"),
        (3, "TENSORPOST_HEAD=10.0.0.1:7117 TENSORPOST_BIND=::1 ./prog"),
    ] {
        assert!(lines[line].ends_with(variables), "{}", lines[line]);
    }
    let twice = farm.run(&[&bound[..], &["--env", "TENSORPOST_BIND=::", "--", "./prog"]].concat());
    assert!(twice.status != Some(0) && twice.err.contains("--bind"), "{}", twice.err);
}
