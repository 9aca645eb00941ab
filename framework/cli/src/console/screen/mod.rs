//! `tensorpost top` on a terminal.
//!
//! A thread asks the node, so that keys are answered while a snapshot is on its way; another one traces, on a
//! connection of its own. `app` has the contents of the screen and the effects of keys, and knows no
//! terminal; `draw` draws it on one.

mod app;
mod draw;
#[cfg(test)]
pub(super) mod tests;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tensorpost_watch::console::{Answer, Console, ConsoleError, LogLine, NodeSnapshot, Request};

use super::{Target, choose, trace};

use self::app::App;

/// How often keys are polled.
const KEYS: Duration = Duration::from_millis(50);

/// How long the key `t` traces.
const TRACED: Duration = Duration::from_secs(5);

/// The news from a thread.
enum Update {
    Snapshot(Box<NodeSnapshot>, Vec<LogLine>),
    End(ConsoleError),
    /// A trace was written, or the reason why not.
    Traced(String),
}

/// Shows the node until the user has seen enough.
pub(super) fn run(console: Console, every: Duration, target: Target) -> anyhow::Result<()> {
    let (to_screen, updates) = sync_channel(1);
    let from_traces = to_screen.clone();
    let (enough, until) = sync_channel::<()>(0);
    let asking = std::thread::Builder::new().name("tp-asks".to_owned());
    asking.spawn(move || ask(console, every, &to_screen, &until))?;
    let mut app = App::new(std::env::var_os("NO_COLOR").is_none());
    // `try_init` also sets a hook that restores the terminal on a panic.
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &mut app, &updates, || {
        let (target, to_screen) = (target.clone(), from_traces.clone());
        let tracing = std::thread::Builder::new().name("tp-traces".to_owned());
        tracing.spawn(move || {
            let said = traced(&target).unwrap_or_else(|error| format!("no trace: {error:#}"));
            // If the screen is gone, nobody is left to be told.
            let _ = to_screen.send(Update::Traced(said));
        })?;
        Ok(())
    });
    ratatui::try_restore()?;
    drop(enough);
    shown
}

/// Traces the node, and returns where the file is.
fn traced(target: &Target) -> anyhow::Result<String> {
    let mut console = choose::connect(target)?;
    let path = trace::new_file(console.hello().pid);
    let written = trace::trace(&mut console, TRACED, path)?;
    Ok(format!("trace: {}, {} records", written.path.display(), written.summary.records))
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    updates: &Receiver<Update>,
    begin_trace: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    while !app.is_done() {
        match updates.try_recv() {
            Ok(Update::Snapshot(snapshot, lines)) => app.take(*snapshot, lines),
            Ok(Update::End(error)) => app.ended(error.to_string()),
            Ok(Update::Traced(said)) => app.traced(said),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        terminal.draw(|frame| draw::draw(app, frame))?;
        if event::poll(KEYS)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            app.key(key);
            if app.begins_trace() {
                begin_trace()?;
            }
        }
    }
    Ok(())
}

/// Looks at the node every `every`, until `until` ends it.
fn ask(mut console: Console, every: Duration, to_screen: &SyncSender<Update>, until: &Receiver<()>) {
    let mut last = 0;
    // Make the first two snapshots close together, so that rates are there soon.
    let mut wait = every.min(Duration::from_millis(200));
    loop {
        let mut snapshot = || -> Result<Update, ConsoleError> {
            let Answer::Log(lines) = console.ask(&Request::Log { after: last })? else {
                return Err(ConsoleError::Ended);
            };
            last = lines.last().map_or(last, |line| line.number);
            Ok(Update::Snapshot(Box::new(console.snapshot()?), lines))
        };
        let (updates, is_end) =
            snapshot().map_or_else(|error| (Update::End(error), true), |updates| (updates, false));
        if to_screen.send(updates).is_err() || is_end {
            return;
        }
        if !matches!(until.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
            return;
        }
        wait = every;
    }
}
