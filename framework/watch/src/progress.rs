//! Draws progress on a terminal, a row for each stage, or as plain lines elsewhere. A node's display has a
//! thread of its own. A pipeline has such a thread already, and writes by itself with a [`ProgressWriter`].
//!
//! **On drop** of a display the thread asks its source once more, writes that snapshot with the rates of the
//! whole run, and has ended when `drop` returns. Write errors are ignored: progress fails nobody.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensorpost_core::api::fork::Inert;
use tensorpost_core::api::observe::ShownProgress;
use tensorpost_core::api::watch::{ProgressFile, ProgressSource, RunningDisplay, per_second};

use crate::draw::{bytes, number, printable, time};

/// How often the rows on a terminal are rewritten by default.
const ON_TERMINAL: Duration = Duration::from_millis(200);
/// How often a plain line comes by default.
const PLAIN: Duration = Duration::from_secs(5);
/// The largest number of stages that a plain line shows.
const MAX_STAGES: usize = 64;
/// The largest number of rows on a terminal: rows that have scrolled off its upper edge cannot be rewritten.
const MAX_ROWS: usize = 20;

/// Writes one snapshot after the other, for a caller that has a thread for it;
/// [`ProgressDisplay`](tensorpost_core::api::observe::ProgressDisplay) brings its own thread.
#[derive(Debug)]
pub struct ProgressWriter<W> {
    out: W,
    form: Form,
    began: Instant,
    before: Option<(Instant, ShownProgress)>,
    /// The rows that are on the terminal now.
    drawn: usize,
}

/// A running display, and the thread that draws it. Dropping it ends both.
#[derive(Debug)]
struct Display(Option<Inert<(SyncSender<()>, JoinHandle<()>)>>);

/// The style of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Terminal,
    Plain,
}

/// Shows the snapshots of a source: in the file, or else on stderr. Returns the display, if the system gives
/// it a thread.
pub(crate) fn show(source: ProgressSource, file: Option<ProgressFile>) -> Option<RunningDisplay> {
    if let Some((out, every)) = file {
        return run(source, ProgressWriter::plain(out), every);
    }
    let writer = ProgressWriter::stderr();
    let every = if writer.form == Form::Terminal { ON_TERMINAL } else { PLAIN };
    run(source, writer, every)
}

fn run(
    mut source: ProgressSource,
    mut writer: ProgressWriter<impl Write + Send + 'static>,
    every: Duration,
) -> Option<RunningDisplay> {
    let (stop, stopped) = sync_channel::<()>(1);
    let show = move || {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
            let Some(shown) = source() else { return writer.finish(None) };
            writer.show(shown);
        }
        writer.finish(source());
    };
    match std::thread::Builder::new().name("tp-progress".to_owned()).spawn(show) {
        Ok(thread) => Some(Box::new(Display(Some(Inert::new((stop, thread)))))),
        Err(error) => {
            tracing::warn!(%error, "progress is not shown: the system refused a thread");
            None
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.0.take().and_then(Inert::into_inner) else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::warn!("what shows the progress panicked");
        }
    }
}

impl ProgressWriter<io::Stderr> {
    /// Makes a writer to stderr: over the snapshot before on a terminal, as plain lines elsewhere.
    pub fn stderr() -> Self {
        let form = if io::stderr().is_terminal() { Form::Terminal } else { Form::Plain };
        Self::new(io::stderr(), form)
    }
}

impl<W: Write> ProgressWriter<W> {
    /// Makes a writer of plain lines to `out`.
    pub fn plain(out: W) -> Self {
        Self::new(out, Form::Plain)
    }

    fn new(out: W, form: Form) -> Self {
        ProgressWriter { out, form, began: Instant::now(), before: None, drawn: 0 }
    }

    /// Writes a snapshot, with the rates since the last call.
    pub fn show(&mut self, shown: ShownProgress) {
        let now = Instant::now();
        let (then, earlier) =
            self.before.as_ref().map_or((self.began, None), |(then, shown)| (*then, Some(shown)));
        let parts = parts(&shown, earlier, now - then, now - self.began);
        self.write(&parts);
        self.before = Some((now, shown));
    }

    /// Writes the last snapshot, with the rates of the whole run. Without one it writes the snapshot that was
    /// shown last.
    pub fn finish(&mut self, last: Option<ShownProgress>) {
        let before = self.before.take().map(|(_, shown)| shown);
        let Some(shown) = last.or(before) else { return };
        let elapsed = self.began.elapsed();
        self.write(&parts(&shown, None, elapsed, elapsed));
    }

    /// Writes the parts: the first is about everything, each other one about a stage.
    fn write(&mut self, parts: &[String]) {
        let text = match self.form {
            Form::Plain => cut(parts, MAX_STAGES + 1).join(" | ") + "\n",
            Form::Terminal => {
                // Goes back to the first row. Wrapping is off, so that a long row still is one row to
                // rewrite.
                let back = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
                let rows = cut(parts, MAX_ROWS);
                self.drawn = rows.len();
                format!("{back}\r\x1b[J\x1b[?7l{}\x1b[?7h\n", rows.join("\n"))
            }
        };
        // A write error is no reason to stop anything.
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

/// Returns a text about everything, and then one about each stage, compared with the snapshot shown `since`
/// ago.
fn parts(
    shown: &ShownProgress,
    earlier: Option<&ShownProgress>,
    since: Duration,
    elapsed: Duration,
) -> Vec<String> {
    let title = if shown.title.is_empty() { String::new() } else { printable(&shown.title) + " " };
    let mut parts = vec![format!("{title}{}, {} in flight", time(elapsed), bytes(shown.bytes_in_flight))];
    let earlier = earlier.map(|earlier| earlier.stages.as_slice()).unwrap_or_default();
    for (index, stage) in shown.stages.iter().enumerate() {
        // The stage is mostly at the same place; a name may be there twice.
        let same = earlier.get(index).filter(|before| before.name == stage.name);
        let before = same.or_else(|| earlier.iter().find(|before| before.name == stage.name));
        let done = stage.done.saturating_sub(before.map_or(0, |before| before.done));
        let rate = per_second(done as f64, since.as_secs_f64());
        let mut text = format!("{} {}", printable(&stage.name), stage.done);
        if let Some(of) = stage.of {
            let _ = write!(text, "/{of}");
        }
        let _ = write!(text, " ({}/s", number(rate));
        if stage.queued > 0 {
            let _ = write!(text, ", {} queued", stage.queued);
        }
        if let Some(each) = stage.each {
            let _ = write!(text, ", {} each", time(each));
        }
        if !stage.note.is_empty() {
            let _ = write!(text, ", {}", printable(&stage.note));
        }
        parts.push(text + ")");
    }
    parts
}

/// Returns at most `most` of the parts, and how many there are beyond.
fn cut(parts: &[String], most: usize) -> Vec<Cow<'_, str>> {
    let hidden = parts.len().saturating_sub(most);
    let more = (hidden > 0).then(|| Cow::Owned(format!("and {hidden} more")));
    parts.iter().take(most).map(|part| Cow::Borrowed(part.as_str())).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::Arc;
    use tensorpost_core::api::observe::ShownStage;

    use super::*;

    fn shown(done: u64) -> ShownProgress {
        let stage = ShownStage {
            name: "blur".into(),
            done,
            of: Some(200),
            queued: 3,
            each: Some(Duration::from_micros(150)),
            note: "2 errors".into(),
        };
        ShownProgress { title: "frames".into(), stages: vec![stage], bytes_in_flight: 3 << 19 }
    }

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Kept {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    #[test]
    fn a_line_says_rate_queue_time_and_bytes() {
        let two = Duration::from_secs(2);
        let now = parts(&shown(150), Some(&shown(50)), two, Duration::from_secs(60));
        let stage = "blur 150/200 (50/s, 3 queued, 150 us each, 2 errors)";
        assert_eq!(now, ["frames 60.0 s, 1.5 MiB in flight", stage]);
        assert_eq!(parts(&ShownProgress::default(), None, Duration::ZERO, two), ["2.0 s, 0 B in flight"]);
    }

    #[test]
    fn on_a_terminal_the_rows_are_written_over_and_the_last_ones_stay() {
        let out = Kept::default();
        let mut writer = ProgressWriter::new(out.clone(), Form::Terminal);
        writer.show(shown(50));
        writer.show(shown(100));
        writer.finish(Some(shown(150)));
        let text = out.text();
        assert_eq!(text.matches("\x1b[2A\r\x1b[J").count(), 2, "{text:?}");
        assert_eq!(text.matches('\n').count(), 3 * 2);
        assert!(text.ends_with('\n') && text.contains("blur 150/200"), "{text:?}");
    }

    #[test]
    fn elsewhere_there_are_plain_lines_and_they_end_with_the_source() {
        let out = Kept::default();
        let mut done = 0;
        let source = move || {
            done += 50;
            (done <= 150).then(|| shown(done))
        };
        let display = show(Box::new(source), Some((Box::new(out.clone()), Duration::from_millis(1))));
        while out.text().lines().count() < 4 {
            std::thread::yield_now();
        }
        drop(display);
        let text = out.text();
        assert_eq!(text.lines().count(), 4);
        assert!(!text.contains(['\r', '\x1b']) && text.lines().last().unwrap().contains("150/200"), "{text}");
    }

    #[test]
    fn dropping_it_writes_the_last_line() {
        let out = Kept::default();
        drop(show(Box::new(|| Some(shown(7))), Some((Box::new(out.clone()), Duration::from_secs(3600)))));
        assert!(out.text().contains("blur 7/200") && out.text().lines().count() == 1, "{}", out.text());
    }

    #[test]
    fn a_name_cannot_move_the_cursor_and_a_long_list_is_cut() {
        let stage = |index: usize| ShownStage { name: format!("a\x1b[2J{index}"), ..ShownStage::default() };
        let shown =
            ShownProgress { stages: (0..MAX_STAGES + 5).map(stage).collect(), ..ShownProgress::default() };
        let out = Kept::default();
        ProgressWriter::plain(out.clone()).show(shown.clone());
        let text = out.text();
        assert!(!text.contains('\x1b') && text.contains("and 5 more"), "{text}");
        let out = Kept::default();
        ProgressWriter::new(out.clone(), Form::Terminal).show(shown);
        assert_eq!(out.text().lines().count(), MAX_ROWS + 1);
    }
}
