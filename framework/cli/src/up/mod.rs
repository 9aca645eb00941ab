//! `tensorpost up`: starts one program on several hosts over ssh, as one node.
//!
//! Each host gets the same program, arguments and key, and the variable by which it joins: the first listens,
//! and the others name it. Every host is prepared before anything starts anywhere (`remote.sh`). `course`
//! decides the steps after that; `ssh` has the connections, and `output` shows the lines of the hosts.
//!
//! When this process dies, is killed or is stopped, or a connection breaks, the hosts end their programs
//! themselves. The head gets SIGTERM and ends the others with it; hosts that still run when it has had its
//! time end their programs too.

mod course;
mod hosts;
mod limits;
#[cfg(test)]
mod limits_tests;
mod lines;
mod output;
mod payload;
mod remote;
mod ssh;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::course::{Act, Course, End};
use self::hosts::{Head, Host};
use self::limits::{BEAT, FOLLOW_IN_BEATS, MAX_EVENTS, PORT, SILENCE_IN_BEATS, TIDY, WITHIN};
use self::output::{Printer, note};
use self::payload::{KEY_FILE, PEM_FILES, Program, drawn, drawn_key, hex, read_key, read_pem};
use self::remote::{Part, Task, loader, quoted};
use self::ssh::{Event, Feed, Heard, Link, Ssh};
use crate::console::{put, time};

/// The variable that names a command in place of ssh, where the user gives no `--ssh`.
const SSH: &str = "TENSORPOST_SSH";

/// The variables by which a host joins, as in `tensorpost_hosts::join`. They say where the head listens,
/// where the others reach it, at which address any host listens, and where the others reach another host. The
/// last names the file to which a host writes its number when it has joined.
const LISTEN: &str = "TENSORPOST_LISTEN";
const HEAD: &str = "TENSORPOST_HEAD";
const BIND: &str = "TENSORPOST_BIND";
const ADVERTISE: &str = "TENSORPOST_ADVERTISE";
const JOINED_FILE: &str = "TENSORPOST_JOINED_FILE";

/// Starts a program on several hosts over ssh, as one node.
///
/// The first host is the head; the others join it. Ctrl-C asks the head to end, and the others end with it.
/// The exit status is the first that is not 0.
#[derive(Args)]
pub(crate) struct Up {
    /// The hosts, the head first: `name` or `user@name`, with commas between them
    #[arg(short = 'H', long = "hosts", value_name = "HOSTS", value_delimiter = ',')]
    #[arg(required_unless_present = "hostfile", conflicts_with = "hostfile")]
    hosts: Vec<String>,
    /// A file with a host in each line, the head first; `#` begins a comment
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// The port on which the head listens
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// The name or address under which the others reach the head; by default the first host's name
    #[arg(long, value_name = "ADDRESS")]
    head: Option<String>,
    /// The one address at which each host listens; `{host}` in it stands for the name of the host. By default
    /// every address
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Copy the program to a temporary folder on each host, which is removed at the end
    #[arg(long)]
    copy: bool,
    /// The node's key: a file of 32 bytes that only you can read; by default a fresh key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Certificates instead of a key: those of the authority, in PEM. `{host}` in a file name stands for the
    /// name of the host
    #[arg(long, value_name = "FILE", requires_all = ["cert", "cert_key"], conflicts_with = "key")]
    ca: Option<PathBuf>,
    /// Each host's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "ca")]
    cert: Option<PathBuf>,
    /// The key of that certificate, which only you can read
    #[arg(long, value_name = "FILE", requires = "ca")]
    cert_key: Option<PathBuf>,
    /// Set a variable of the program; NAME alone passes on its value here
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    variables: Vec<OsString>,
    /// The folder in which the program runs on each host; by default the one with the path of this folder, or
    /// with --copy, if that is missing, the home folder
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// The command in place of ssh, with arguments; by default TENSORPOST_SSH, or else ssh
    #[arg(long, value_name = "COMMAND")]
    ssh: Option<OsString>,
    /// Kill programs that were asked to end and have not ended after this time
    #[arg(long, value_name = "TIME", default_value = WITHIN, value_parser = time)]
    within: Duration,
    /// Print the commands, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Interval at which hosts get a beat; a host without beats ends its program
    #[arg(long, hide = true, value_parser = time)]
    beat: Option<Duration>,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The plan of a run: hosts, parts and the task.
struct Plan {
    hosts: Vec<Host>,
    /// The part of each host.
    parts: Vec<Part>,
    ssh: Vec<OsString>,
    task: Task,
    beat: Duration,
}

impl Up {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let plan = self.plan()?;
        if self.dry_run {
            put(&String::from_utf8_lossy(&plan.shown()?))?;
            return Ok(ExitCode::SUCCESS);
        }
        plan.run()
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let hosts = match &self.hostfile {
            Some(path) => {
                let named = || format!("--hostfile {}", path.display());
                let text = std::fs::read_to_string(path).with_context(named)?;
                let names = hosts::in_file(&text).with_context(named)?;
                hosts::named(&names).with_context(named)?
            }
            None => hosts::named(&self.hosts)?,
        };
        let folder = match &self.dir {
            Some(folder) => folder.clone(),
            None => std::env::current_dir().context("this folder has no name: name one with --dir")?,
        };
        let named = self.program.first().context("no program is named")?;
        let beat = self.beat.unwrap_or(BEAT);
        let task = Task {
            mark: format!("tensorpost-up-{}", hex(&drawn::<16>()?)),
            within: self.within,
            silence: beat * SILENCE_IN_BEATS,
            folder: folder.into(),
            elsewhere: self.copy && self.dir.is_none(),
            copy: self.copy.then(|| Program::find(named)).transpose()?,
            variables: self.variables.iter().map(|text| variable(text)).collect::<anyhow::Result<_>>()?,
            program: self.program.clone(),
        };
        let head = hosts::head(&hosts, self.head.as_deref(), self.port)?;
        let parts = self.parts(&hosts, &head, &task.variables)?;
        let ssh = self.ssh.clone().or_else(|| std::env::var_os(SSH)).filter(|words| !words.is_empty());
        let ssh = words(&ssh.unwrap_or_else(|| "ssh".into()))?;
        Ok(Plan { hosts, parts, ssh, task, beat })
    }

    /// Returns the part of each host in the node, with the secrets that prove it.
    fn parts(&self, hosts: &[Host], head: &Head, users: &[(String, OsString)]) -> anyhow::Result<Vec<Part>> {
        let of_user = |name: &str| users.iter().any(|(users, _)| users == name);
        for name in [LISTEN, HEAD, JOINED_FILE] {
            ensure!(!of_user(name), "--env {name} is what this command says itself: see --head and --port");
        }
        ensure!(self.bind.is_none() || !of_user(BIND), "--env {BIND} says what --bind says: leave one out");
        let own_files = of_user(KEY_FILE) || PEM_FILES.iter().any(|name| of_user(name));
        ensure!(
            !own_files || (self.key.is_none() && self.ca.is_none()),
            "--env names files that are on the hosts, and --key or --ca some to bring there: leave one out"
        );
        let pem = match (&self.ca, &self.cert, &self.cert_key) {
            (Some(ca), Some(cert), Some(key)) => Some([ca.as_path(), cert, key]),
            _ => None,
        };
        let one_key = match &self.key {
            _ if own_files || pem.is_some() => Vec::new(),
            Some(path) => read_key(path)?,
            None => drawn_key()?,
        };
        // A certificate is for the name by which the others dial its host.
        let says_its_name =
            !of_user(ADVERTISE) && (pem.is_some() || PEM_FILES.iter().any(|name| of_user(name)));
        let part = |(number, host): (usize, &Host)| {
            let mut variables = vec![match number {
                0 => (LISTEN, head.listen.clone()),
                _ => (HEAD, head.address.clone()),
            }];
            if let Some(bind) = &self.bind {
                variables.push((BIND, bind.replace("{host}", host.name())));
            }
            if says_its_name {
                variables.push((ADVERTISE, host.name().to_owned()));
            }
            let secrets = pem.map_or_else(|| Ok(one_key.clone()), |files| read_pem(files, host.name()))?;
            Ok(Part { is_head: number == 0, variables, secrets })
        };
        hosts.iter().enumerate().map(part).collect()
    }
}

/// Parses `NAME=VALUE`, or the name of a variable that is set here.
fn variable(text: &OsStr) -> anyhow::Result<(String, OsString)> {
    let mut parts = text.as_bytes().splitn(2, |&byte| byte == b'=');
    let name = parts.next().and_then(|name| str::from_utf8(name).ok()).unwrap_or_default();
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_name = fits && name.starts_with(|c: char| !c.is_ascii_digit());
    ensure!(is_name, "--env {text:?} has no name of a variable: write NAME or NAME=VALUE");
    let value = match parts.next() {
        Some(value) => OsString::from_vec(value.to_vec()),
        None => std::env::var_os(name)
            .with_context(|| format!("--env {name} is not set here: write {name}=VALUE"))?,
    };
    Ok((name.to_owned(), value))
}

/// Splits a command into words, as a shell does.
fn words(text: &OsStr) -> anyhow::Result<Vec<OsString>> {
    let words = shlex::bytes::split(text.as_bytes());
    let words = words.with_context(|| format!("--ssh {text:?} has a quote that does not end"))?;
    ensure!(!words.is_empty(), "--ssh names no command");
    Ok(words.into_iter().map(OsString::from_vec).collect())
}

impl Plan {
    fn command(&self, host: usize, script: &[u8]) -> Vec<OsString> {
        ssh::command(&self.ssh, &self.hosts[host].target, &loader(script))
    }

    /// Returns the command for each host, and its effect there.
    fn shown(&self) -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::new();
        for host in 0..self.hosts.len() {
            let part = &self.parts[host];
            let script = self.task.script(part)?;
            let words = self.command(host, &script);
            let words = words.iter().map(|word| quoted(word)).collect::<anyhow::Result<Vec<_>>>()?;
            text.extend(words.join(&b' '));
            text.extend_from_slice(b"\n    ");
            text.extend(self.task.shown(part)?);
            text.push(b'\n');
        }
        Ok(text)
    }

    fn run(&self) -> anyhow::Result<ExitCode> {
        let (events, heard) = sync_channel(MAX_EVENTS);
        listen_to_signals(events.clone())?;
        let ssh = Ssh { mark: self.task.mark.clone(), printer: Arc::new(Printer::new(&self.hosts)), events };
        let mut links = Vec::with_capacity(self.hosts.len());
        for host in 0..self.hosts.len() {
            let script = self.task.script(&self.parts[host])?;
            let words = self.command(host, &script);
            let feed = Feed {
                script,
                secrets: self.parts[host].secrets.clone(),
                program: self.task.copy.clone(),
                beat: self.beat,
            };
            links.push(
                ssh.connect(host, &words, feed)
                    .with_context(|| format!("host {}", self.hosts[host].label))?,
            );
        }
        let labels = self.hosts.iter().map(|host| host.label.clone());
        let follow = (self.beat * FOLLOW_IN_BEATS).min(self.task.within);
        let mut course = Course::new(labels, self.task.within, follow, Instant::now());
        let mut ended = 0;
        let end = follow_to_the_end(&mut course, &heard, &links, &mut ended)?;
        match end {
            End::Status(status) => {
                if let Some((label, status)) = course.first_failure() {
                    note(&format!("`{label}` was the first to fail, with {}", course::shown(status)));
                }
                Ok(ExitCode::from(status))
            }
            End::NotStarted(why) => {
                // Each connection has a process and two outputs.
                let all = 3 * links.len();
                drop(links);
                let until = Instant::now() + TIDY;
                while ended < all {
                    let left = until.saturating_duration_since(Instant::now());
                    match heard.recv_timeout(left) {
                        Ok(Event::Of(_, what)) => ended += usize::from(is_end(&what)),
                        Ok(Event::Unread) => {}
                        Ok(Event::Signal) | Err(_) => break,
                    }
                }
                bail!("{why}; nothing was started anywhere")
            }
        }
    }
}

fn is_end(heard: &Heard) -> bool {
    matches!(heard, Heard::Exited(_) | Heard::Closed)
}

/// Does the acts of the course until it has an end. `ended` counts the processes and outputs of connections
/// that have ended.
fn follow_to_the_end(
    course: &mut Course,
    heard: &Receiver<Event>,
    links: &[Link],
    ended: &mut usize,
) -> anyhow::Result<End> {
    let mut acts = Vec::new();
    loop {
        let next = course.due(Instant::now(), &mut acts);
        // Send words before notes, because a paused terminal holds notes up.
        for act in &acts {
            if let Act::Tell(host, word) = act {
                links[*host].say(*word);
            }
        }
        for act in acts.drain(..) {
            if let Act::Note(text) = act {
                note(&text);
            }
        }
        if let Some(end) = course.end() {
            return Ok(end);
        }
        let event = match next {
            None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => heard.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match event {
            Ok(Event::Of(host, what)) => {
                *ended += usize::from(is_end(&what));
                course.heard(host, what, Instant::now(), &mut acts);
            }
            Ok(Event::Signal) => course.stop(Instant::now(), &mut acts),
            Ok(Event::Unread) => course.unread(Instant::now(), &mut acts),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("nothing is heard of any host"),
        }
    }
}

/// Turns signals into events, except SIGHUP: where that ends this process, the hosts end their programs
/// themselves, and `nohup` keeps its effect.
fn listen_to_signals(events: SyncSender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signals cannot be waited for")?;
    let listen = move || {
        for _ in signals.forever() {
            if events.send(Event::Signal).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(())
}
