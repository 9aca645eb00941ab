//! A connection to a host: an ssh process, and the threads that feed it, read it and wait for it.
//!
//! The holder of a [`Link`] can send words to its host. Meanwhile a thread sends beats, which say that the
//! host is still looked after. When the link is dropped, or this process dies, the input of ssh ends, and the
//! script on the host ends the program. Each ssh process has a process group of its own, so that Ctrl-C on
//! the terminal does not cut the connections that tell the programs of it.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::limits::SSH_OPTIONS;
use super::lines::{Lines, Mark, Marks};
use super::output::{Printer, Stream};
use super::payload::{Program, Secret};

/// The words to a host that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Starts the program.
    Go,
    /// Asks it to end.
    Term,
    /// Kills it.
    Kill,
}

impl Word {
    fn line(self) -> &'static [u8] {
        match self {
            Word::Go => b"go\n",
            Word::Term => b"term\n",
            Word::Kill => b"kill\n",
        }
    }
}

/// An event from a host, or from this process.
#[derive(Debug)]
pub(super) enum Event {
    /// From the host with this number.
    Of(usize, Heard),
    /// A signal asks this process to end.
    Signal,
    /// Nobody reads the output of the hosts.
    Unread,
}

#[derive(Debug)]
pub(super) enum Heard {
    /// The script there sent this message.
    Said(Mark),
    /// One of its two outputs has ended.
    Closed,
    /// ssh has ended.
    Exited(ExitStatus),
    /// It cannot get its input, for a reason on this side.
    Unfed(String),
}

/// The input of a host.
pub(super) struct Feed {
    pub(super) script: Vec<u8>,
    pub(super) secrets: Vec<Secret>,
    pub(super) program: Option<Program>,
    /// How often it gets a beat, which says that it is still looked after.
    pub(super) beat: Duration,
}

/// The channel for words to a host.
pub(super) struct Link(Sender<Word>);

impl Link {
    /// Sends a word to the host. A host that is gone misses it; its end is an event of its own.
    pub(super) fn say(&self, word: Word) {
        let _ = self.0.send(word);
    }
}

/// The common parts of a run's connections.
pub(super) struct Ssh {
    pub(super) mark: String,
    pub(super) printer: Arc<Printer>,
    pub(super) events: SyncSender<Event>,
}

/// Returns the whole command for a host.
pub(super) fn command(ssh: &[OsString], target: &str, loader: &str) -> Vec<OsString> {
    let mut words = ssh.to_vec();
    words.extend(SSH_OPTIONS.map(OsString::from));
    words.extend([target.into(), loader.into()]);
    words
}

impl Ssh {
    /// Connects to a host, and starts to prepare it.
    pub(super) fn connect(&self, host: usize, words: &[OsString], feed: Feed) -> anyhow::Result<Link> {
        let (program, arguments) = words.split_first().context("--ssh names no command")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().with_context(|| {
            let program = program.display();
            format!(
                "{program} cannot be started: install OpenSSH's client, or name another command with --ssh"
            )
        })?;
        let (tell, told) = channel();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(out), Some(err)) = pipes else { anyhow::bail!("ssh has no pipes") };
        let named = |what: &str| thread::Builder::new().name(format!("{what} {host}"));
        let events = self.events.clone();
        named("feed").spawn(move || feed_and_say(input, feed, &told, host, &events))?;
        self.read(named("out"), out, host, Stream::Out)?;
        self.read(named("err"), err, host, Stream::Err)?;
        let events = self.events.clone();
        named("wait").spawn(move || wait(child, host, &events))?;
        Ok(Link(tell))
    }

    fn read(
        &self,
        thread: thread::Builder,
        from: impl Read + Send + 'static,
        host: usize,
        stream: Stream,
    ) -> io::Result<()> {
        let (printer, events) = (Arc::clone(&self.printer), self.events.clone());
        let marks = (stream == Stream::Out).then(|| Marks::new(&self.mark));
        thread.spawn(move || show(from, host, stream, &printer, marks, &events))?;
        Ok(())
    }
}

/// Sends an event. It ignores errors, because nobody reads events any more when this process ends.
fn tell(events: &SyncSender<Event>, host: usize, heard: Heard) {
    let _ = events.send(Event::Of(host, heard));
}

fn wait(mut child: Child, host: usize, events: &SyncSender<Event>) {
    let heard = match child.wait() {
        Ok(status) => Heard::Exited(status),
        Err(error) => Heard::Unfed(format!("ssh cannot be waited for: {error}")),
    };
    tell(events, host, heard);
}

fn feed_and_say(
    mut to: ChildStdin,
    feed: Feed,
    words: &Receiver<Word>,
    host: usize,
    events: &SyncSender<Event>,
) {
    if let Err(error) = give(&mut to, &feed) {
        // If ssh is gone, its end is reported as an event of its own.
        if !is_gone(&error) {
            tell(events, host, Heard::Unfed(format!("{error:#}")));
        }
        return;
    }
    drop((feed.script, feed.secrets, feed.program));
    let mut going = false;
    loop {
        let line = match words.recv_timeout(feed.beat) {
            Ok(word) => {
                going |= word == Word::Go;
                word.line()
            }
            // The host waits for the word to go before it beats.
            Err(RecvTimeoutError::Timeout) if going => b"beat\n",
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if to.write_all(line).is_err() {
            return;
        }
    }
}

fn give(to: &mut ChildStdin, feed: &Feed) -> anyhow::Result<()> {
    to.write_all(&feed.script)?;
    for secret in &feed.secrets {
        to.write_all(&secret.bytes)?;
    }
    if let Some(program) = &feed.program {
        let given = io::copy(&mut program.open()?, to)?;
        anyhow::ensure!(
            given == program.bytes,
            "the program has become shorter while it was copied: start it again"
        );
    }
    Ok(())
}

fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn show(
    mut from: impl Read,
    host: usize,
    stream: Stream,
    printer: &Printer,
    mut marks: Option<Marks>,
    events: &SyncSender<Event>,
) {
    let (mut lines, mut chunk, mut text) = (Lines::default(), vec![0; 16 << 10], Vec::new());
    let mut is_read = true;
    loop {
        let read = match from.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(read) => read,
            Err(_) => 0,
        };
        let mut said = Vec::new();
        let mut sort = |line: &[u8]| match &mut marks {
            Some(marks) => said.extend(marks.sort(line, |line| printer.line(host, stream, line, &mut text))),
            None => printer.line(host, stream, line, &mut text),
        };
        lines.take(&chunk[..read], &mut sort);
        if read == 0 {
            lines.finish(&mut sort);
            if let Some(marks) = &mut marks {
                marks.finish(|line| printer.line(host, stream, line, &mut text));
            }
        }
        // Throw away output that nobody reads, so that the host can go on to its end.
        if is_read && printer.put(stream, &text).is_err() {
            is_read = false;
            let _ = events.send(Event::Unread);
        }
        text.clear();
        for mark in said {
            tell(events, host, Heard::Said(mark));
        }
        if read == 0 {
            break;
        }
    }
    tell(events, host, Heard::Closed);
}
