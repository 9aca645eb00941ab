//! The course of a run: it decides which words go to which host at which time, and the status with which the
//! run ends. It does no I/O, and has no clock of its own.
//!
//! Nothing starts anywhere before everything is ready everywhere. The head is asked to end first, and the
//! others only if they go on for a while after its end, because a head drains all hosts of its node together
//! and ends them with it. A program that was asked and does not end is killed; a second signal kills at once,
//! and a third gives up.
//!
//! If a host's program fails before it has joined, all hosts are asked to end: the others would wait for it
//! in vain. A later failure is left to the node, which may go on without that host.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use signal_hook::low_level::signal_name;

use super::limits::{KILLED, LINGER, MAX_LISTED, SLOW};
use super::lines::Mark;
use super::ssh::{Heard, Word};

/// A step that the caller has to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Sends a word to a host.
    Tell(usize, Word),
    /// Shows a line to the user.
    Note(String),
}

/// The end of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The run ends with the status of the first program that failed, or 0.
    Status(u8),
    /// Nothing was started, for this reason.
    NotStarted(String),
}

/// The status of a host that was lost: the one of ssh.
const LOST: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Prepares,
    Ready,
    Starts,
    Runs,
    Over,
}

struct State {
    label: String,
    at: At,
    joined: bool,
    /// The status of the program's end, as the script reported it.
    said: Option<u8>,
    /// Outputs that have not ended.
    open: u8,
    exited: Option<(ExitStatus, Instant)>,
    asked: Option<Instant>,
    killed: Option<Instant>,
}

/// The hosts of a run.
pub(super) struct Course {
    hosts: Vec<State>,
    /// How long a program that was asked to end may take.
    within: Duration,
    /// How long the others may take when the head has ended.
    follow: Duration,
    began: Instant,
    /// When the programs were started.
    started: Option<Instant>,
    /// Whether the waits were reported: for hosts to be ready, and for hosts to join.
    told_slow: [bool; 2],
    signals: u32,
    head_over: Option<Instant>,
    first: Option<(usize, u8)>,
    end: Option<End>,
}

impl Course {
    pub(super) fn new(
        labels: impl Iterator<Item = String>,
        within: Duration,
        follow: Duration,
        now: Instant,
    ) -> Self {
        let state = |label| State {
            label,
            at: At::Prepares,
            joined: false,
            said: None,
            open: 2,
            exited: None,
            asked: None,
            killed: None,
        };
        Course {
            hosts: labels.map(state).collect(),
            within,
            follow,
            began: now,
            started: None,
            told_slow: [false; 2],
            signals: 0,
            head_over: None,
            first: None,
            end: None,
        }
    }

    /// Returns the end of the run, once it has ended.
    pub(super) fn end(&mut self) -> Option<End> {
        self.end.take()
    }

    /// Returns the host that was the first to fail, and its status.
    pub(super) fn first_failure(&self) -> Option<(&str, u8)> {
        self.first.map(|(host, status)| (self.hosts[host].label.as_str(), status))
    }

    /// Handles an event from a host.
    pub(super) fn heard(&mut self, host: usize, heard: Heard, now: Instant, acts: &mut Vec<Act>) {
        let Some(state) = self.hosts.get_mut(host) else { return };
        match heard {
            Heard::Said(Mark::Ready) if state.at == At::Prepares => {
                state.at = At::Ready;
                self.go_if_all_are_ready(now, acts);
            }
            Heard::Said(Mark::Started) if state.at == At::Starts => {
                state.at = At::Runs;
                if self.hosts.iter().all(|state| !matches!(state.at, At::Starts)) {
                    let names = self.names(|state| state.at == At::Runs);
                    acts.push(Act::Note(format!("the program runs on {names}")));
                }
            }
            Heard::Said(Mark::Joined(number)) if state.runs() && !state.joined => {
                state.joined = true;
                let label = state.label.clone();
                let (joined, all) =
                    (self.hosts.iter().filter(|state| state.joined).count(), self.hosts.len());
                acts.push(Act::Note(match host {
                    0 => format!("`{label}` is the head, and takes the others in: {joined} of {all}"),
                    _ => format!("`{label}` has joined as host {number}: {joined} of {all}"),
                }));
            }
            Heard::Said(Mark::Ended(status)) if state.runs() => {
                state.said = Some(status);
            }
            // Ignore a mark out of turn: a host can send anything, and it concerns only that host.
            Heard::Said(_) => {}
            Heard::Closed => state.open = state.open.saturating_sub(1),
            Heard::Exited(status) => state.exited = Some((status, now)),
            Heard::Unfed(why) => match state.at {
                At::Prepares => {
                    let why = format!("`{}` cannot be given what it needs: {why}", state.label);
                    self.give_up_the_start(why);
                }
                _ => self.over(host, LOST, now, acts),
            },
        }
        self.look_at_ends(now, acts);
    }

    /// Handles a signal, which asks for the end.
    pub(super) fn stop(&mut self, now: Instant, acts: &mut Vec<Act>) {
        self.signals += 1;
        if self.hosts.iter().any(|state| matches!(state.at, At::Prepares | At::Ready)) {
            self.give_up_the_start("it was interrupted".to_owned());
            return;
        }
        match self.signals {
            1 => {
                let what = match self.head_over {
                    None => "the head is asked to end, and the others with it",
                    Some(_) => "asked to end",
                };
                acts.push(Act::Note(format!("{what}; press Ctrl-C again to kill")));
                self.ask_all(now, acts);
            }
            2 => (0..self.hosts.len()).for_each(|host| self.kill(host, now, acts)),
            _ => {
                acts.push(Act::Note(format!("{} given up", self.names(|state| state.at != At::Over))));
                self.end = Some(End::Status(self.first.map_or(LOST, |(_, status)| status)));
            }
        }
    }

    /// Asks for the end because nobody reads the hosts' output any more; it does so once, even if both
    /// outputs are broken.
    pub(super) fn unread(&mut self, now: Instant, acts: &mut Vec<Act>) {
        if self.signals == 0 {
            self.stop(now, acts);
        }
    }

    /// Adds the acts that are due by now, and returns when the next are due.
    pub(super) fn due(&mut self, now: Instant, acts: &mut Vec<Act>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut is_due = |at: Instant| {
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
            at <= now
        };
        let prepares = |state: &State| state.at == At::Prepares;
        if !self.told_slow[0] && self.hosts.iter().any(prepares) && is_due(self.began + SLOW) {
            self.told_slow[0] = true;
            acts.push(Act::Note(format!("waiting for {}", self.names(prepares))));
        }
        let is_out = |state: &State| state.runs() && !state.joined;
        if let Some(started) = self.started
            && !self.told_slow[1]
            && self.hosts.iter().any(is_out)
            && is_due(started + SLOW)
        {
            self.told_slow[1] = true;
            let names = self.names(is_out);
            acts.push(Act::Note(match self.hosts.first().is_some_and(is_out) {
                true => format!(
                    "{names} not joined yet: the head's program has not started a node of several hosts"
                ),
                false => format!("{names} not joined yet: does the head's port answer there?"),
            }));
        }
        let follows = self.head_over.map(|at| at + self.follow);
        for host in 0..self.hosts.len() {
            let state = &self.hosts[host];
            if state.at == At::Over {
                continue;
            }
            // `look_at_ends` below waits until then for the last output; only note when to come back.
            if let Some((_, at)) = state.exited {
                is_due(at + LINGER);
            }
            let runs = state.runs();
            // A host is asked, then killed, then given up. Each step also notes when the next one is due, or
            // nothing would call again for it.
            match (state.asked, state.killed) {
                (_, Some(at)) if is_due(at + KILLED) => {
                    acts.push(Act::Note(format!("`{}` does not answer, and is given up", state.label)));
                    self.over(host, LOST, now, acts);
                }
                (_, Some(_)) => {}
                (Some(at), None) if is_due(at + self.within) => {
                    acts.push(Act::Note(format!("`{}` has not ended in time, and is killed", state.label)));
                    self.kill(host, now, acts);
                    is_due(now + KILLED);
                }
                (Some(_), None) => {}
                (None, None) if runs && follows.is_some_and(&mut is_due) => {
                    acts.push(Act::Note(format!(
                        "`{}` goes on without the head, and is asked to end",
                        state.label
                    )));
                    self.ask(host, now, acts);
                    is_due(now + self.within);
                }
                (None, None) => {}
            }
        }
        // Look at the ends last: a host that was given up above is over already.
        self.look_at_ends(now, acts);
        next
    }

    fn go_if_all_are_ready(&mut self, now: Instant, acts: &mut Vec<Act>) {
        if self.end.is_some() || self.hosts.iter().any(|state| state.at != At::Ready) {
            return;
        }
        self.started = Some(now);
        for (host, state) in self.hosts.iter_mut().enumerate() {
            state.at = At::Starts;
            acts.push(Act::Tell(host, Word::Go));
        }
    }

    fn ask(&mut self, host: usize, now: Instant, acts: &mut Vec<Act>) {
        let state = &mut self.hosts[host];
        if state.at != At::Over && state.asked.is_none() {
            state.asked = Some(now);
            acts.push(Act::Tell(host, Word::Term));
        }
    }

    fn kill(&mut self, host: usize, now: Instant, acts: &mut Vec<Act>) {
        let state = &mut self.hosts[host];
        if state.at != At::Over && state.killed.is_none() {
            state.killed = Some(now);
            acts.push(Act::Tell(host, Word::Kill));
        }
    }

    /// Handles connections that have ended, once all their output was read, or another process has held their
    /// pipes for long enough.
    fn look_at_ends(&mut self, now: Instant, acts: &mut Vec<Act>) {
        for host in 0..self.hosts.len() {
            let state = &self.hosts[host];
            let Some((exited, at)) = state.exited else { continue };
            if state.at == At::Over || (state.open > 0 && now < at + LINGER) {
                continue;
            }
            let label = &state.label;
            match (state.at, state.said) {
                (At::Prepares | At::Ready, _) => {
                    let why = not_prepared(label, exited);
                    self.give_up_the_start(why);
                }
                (_, Some(status)) => {
                    if status != 0 {
                        acts.push(Act::Note(format!("`{label}` has ended with {}", shown(status))));
                    }
                    self.over(host, status, now, acts);
                }
                (_, None) => {
                    acts.push(Act::Note(format!(
                        "the connection to `{label}` is lost ({exited}); what runs there is asked to end there, and then killed"
                    )));
                    self.over(host, LOST, now, acts);
                }
            }
        }
    }

    fn over(&mut self, host: usize, status: u8, now: Instant, acts: &mut Vec<Act>) {
        let state = &mut self.hosts[host];
        if std::mem::replace(&mut state.at, At::Over) == At::Over {
            return;
        }
        let was_whole = state.joined;
        if status != 0 {
            self.first.get_or_insert((host, status));
        }
        if host == 0 {
            self.head_over = Some(now);
        }
        if self.hosts.iter().all(|state| state.at == At::Over) {
            self.end.get_or_insert(End::Status(self.first.map_or(0, |(_, status)| status)));
        } else if status != 0 && !was_whole && self.signals == 0 {
            let label = &self.hosts[host].label;
            acts.push(Act::Note(format!("`{label}` will not join, so all are asked to end")));
            self.ask_all(now, acts);
        }
    }

    /// Asks the head to end, and so the others with it; where the head has ended, asks the remaining hosts.
    fn ask_all(&mut self, now: Instant, acts: &mut Vec<Act>) {
        let last = if self.head_over.is_none() { 1 } else { self.hosts.len() };
        for host in 0..last {
            self.ask(host, now, acts);
        }
    }

    /// Ends the run before the start. The first reason is the one that is reported.
    fn give_up_the_start(&mut self, why: String) {
        self.end.get_or_insert(End::NotStarted(why));
    }

    fn names(&self, which: impl Fn(&State) -> bool) -> String {
        let mut names = self.hosts.iter().filter(|state| which(state)).map(|state| state.label.as_str());
        let listed = names.by_ref().take(MAX_LISTED).collect::<Vec<_>>().join(", ");
        match names.count() {
            0 => listed,
            more => format!("{listed} and {more} more"),
        }
    }
}

impl State {
    fn runs(&self) -> bool {
        matches!(self.at, At::Starts | At::Runs)
    }
}

/// Returns a status in words: a shell adds 128 to the signal that has ended a program.
pub(super) fn shown(status: u8) -> String {
    match status.checked_sub(128).and_then(|signal| signal_name(signal.into())) {
        Some(signal) => format!("status {status} ({signal})"),
        None => format!("status {status}"),
    }
}

/// Returns why a host could not be prepared. ssh ends with 255 where it fails itself, and otherwise with the
/// status of the command that it ran.
fn not_prepared(label: &str, exited: ExitStatus) -> String {
    match exited.code() {
        Some(255) => format!(
            "`{label}` cannot be reached: its own lines above say why. `ssh -o BatchMode=yes {label} true` has to work without a \
             question: for a password put a key there (ssh-copy-id, ssh-agent), and connect once by hand to a host whose key is not known"
        ),
        _ => format!(
            "`{label}` was reached and could not be prepared ({exited}): its own lines above say why. It needs a POSIX sh and the \
             usual programs of Linux (mktemp, dd, mkfifo)"
        ),
    }
}

#[cfg(test)]
mod tests;
