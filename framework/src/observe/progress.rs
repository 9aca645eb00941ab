//! A line of progress for people: rates, queues and bytes in flight, while a program runs.
//!
//! On a terminal one line is written over and over; elsewhere (a file, a pipe, a CI log) a plain line comes every few
//! seconds; [`ProgressDisplay::off`] writes nothing. What is shown comes from a closure, so a node, a pipeline or
//! anything else can be shown. A thread of its own asks it, so a slow source delays nobody.
//!
//! **On drop** the thread asks once more, writes that as a plain line, and has ended when `drop` returns. Whatever
//! cannot be written is not written: progress fails nobody.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::metrics::{Metrics, Row};

/// How often the line on a terminal is written anew, unless said otherwise.
const ON_TERMINAL: Duration = Duration::from_millis(200);
/// How often a plain line comes, unless said otherwise.
const PLAIN: Duration = Duration::from_secs(5);
/// Most stages that a line shows.
const MAX_STAGES: usize = 64;

/// A snapshot to show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// The actors or stages, in the order in which they are to be shown.
    pub stages: Vec<ShownStage>,
    /// Bytes lent between processes at this moment.
    pub bytes_in_flight: u64,
}

/// One actor, or one stage of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShownStage {
    /// Its name.
    pub name: String,
    /// How much it has handled so far. The rate is computed from this.
    pub done: u64,
    /// The total, if it is known.
    pub of: Option<u64>,
    /// Messages that wait for it.
    pub queued: usize,
    /// How long it takes for one.
    pub each: Option<Duration>,
}

/// A running display; see the module. [`Node::progress`](crate::node::Node::progress) shows the actors of a node.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tensorpost::observe::progress::{ProgressDisplay, Shown, ShownStage};
///
/// let frames = Arc::new(AtomicU64::new(0));
/// let counted = frames.clone();
/// let progress = ProgressDisplay::start(move || {
///     let done = counted.load(Ordering::Relaxed);
///     let stage = ShownStage { name: "frames".into(), done, of: Some(100), ..ShownStage::default() };
///     Some(Shown { stages: vec![stage], bytes_in_flight: 0 })
/// });
/// frames.store(100, Ordering::Relaxed);
/// drop(progress); // the last line is written
/// ```
#[derive(Debug)]
#[must_use = "the display ends when this drops"]
pub struct ProgressDisplay {
    running: Option<(SyncSender<()>, JoinHandle<()>)>,
}

/// How to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Terminal,
    Plain,
}

impl From<&Metrics> for Shown {
    fn from(metrics: &Metrics) -> Self {
        let stage = |Row { name, handled, queued, p50, .. }| ShownStage {
            name,
            done: handled,
            of: None,
            queued,
            each: p50,
        };
        // Compared with nothing, a row holds what was since the beginning.
        let stages = metrics.rows(&Metrics::default()).into_iter().map(stage).collect();
        Shown { stages, bytes_in_flight: metrics.bytes_in_flight() }
    }
}

impl ProgressDisplay {
    /// Shows what `source` says on stderr. The display ends by itself when `source` says `None`.
    pub fn start(source: impl FnMut() -> Option<Shown> + Send + 'static) -> Self {
        let form = if io::stderr().is_terminal() { Form::Terminal } else { Form::Plain };
        let every = if form == Form::Terminal { ON_TERMINAL } else { PLAIN };
        Self::run(source, io::stderr(), form, every)
    }

    /// Plain lines to `out`, one every `every`: for a log file.
    pub fn plain(
        source: impl FnMut() -> Option<Shown> + Send + 'static,
        out: impl Write + Send + 'static,
        every: Duration,
    ) -> Self {
        Self::run(source, out, Form::Plain, every)
    }

    /// Shows nothing.
    pub fn off() -> Self {
        ProgressDisplay { running: None }
    }

    fn run(
        source: impl FnMut() -> Option<Shown> + Send + 'static,
        out: impl Write + Send + 'static,
        form: Form,
        every: Duration,
    ) -> Self {
        let (stop, stopped) = sync_channel::<()>(1);
        let mut display = Display { source, out, form, began: Instant::now(), before: None };
        let show = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                if !display.show(false) {
                    return;
                }
            }
            display.show(true);
        };
        match std::thread::Builder::new().name("tensorpost-progress".to_owned()).spawn(show) {
            Ok(thread) => ProgressDisplay { running: Some((stop, thread)) },
            Err(error) => {
                tracing::warn!(%error, "progress is not shown: the system refused a thread");
                ProgressDisplay::off()
            }
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::warn!("what shows the progress panicked");
        }
    }
}

struct Display<S, W> {
    source: S,
    out: W,
    form: Form,
    began: Instant,
    before: Option<(Instant, Shown)>,
}

impl<S: FnMut() -> Option<Shown>, W: Write> Display<S, W> {
    /// Writes what is so now; false when there is nothing more to say. `last`: nothing will come after it.
    fn show(&mut self, last: bool) -> bool {
        let now = Instant::now();
        let shown = (self.source)();
        let over = last || shown.is_none();
        // The last line is about the whole run, and about what was seen last if there is nothing to ask any more.
        let Some(shown) = shown.or_else(|| self.before.take().map(|(_, shown)| shown)) else { return false };
        let since = if over { None } else { self.before.as_ref() };
        let (then, earlier) = since.map_or((self.began, None), |(then, shown)| (*then, Some(shown)));
        let line = line(&shown, earlier, now - then, now - self.began);
        // A display that cannot be written to is no reason to stop anything.
        let _ = match (self.form, over) {
            // Without wrapping, so that a line longer than the terminal is still one line to write over.
            (Form::Terminal, false) => write!(self.out, "\r\x1b[?7l\x1b[2K{line}\x1b[?7h"),
            (Form::Terminal, true) => writeln!(self.out, "\r\x1b[2K{line}"),
            (Form::Plain, _) => writeln!(self.out, "{line}"),
        };
        let _ = self.out.flush();
        self.before = Some((now, shown));
        !over
    }
}

fn line(shown: &Shown, earlier: Option<&Shown>, since: Duration, elapsed: Duration) -> String {
    let mut text = format!("{:.1} s", elapsed.as_secs_f64());
    let earlier = earlier.map(|earlier| earlier.stages.as_slice()).unwrap_or_default();
    for (index, stage) in shown.stages.iter().take(MAX_STAGES).enumerate() {
        // Mostly at the same place; a name may be there twice.
        let same = earlier.get(index).filter(|before| before.name == stage.name);
        let before = same.or_else(|| earlier.iter().find(|before| before.name == stage.name));
        let done = stage.done.saturating_sub(before.map_or(0, |before| before.done));
        let rate = if since.is_zero() { 0.0 } else { done as f64 / since.as_secs_f64() };
        let _ = write!(text, " | {} {}", printable(&stage.name), stage.done);
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
        text.push(')');
    }
    if shown.stages.len() > MAX_STAGES {
        let _ = write!(text, " | and {} more", shown.stages.len() - MAX_STAGES);
    }
    let _ = write!(text, " | {} in flight", bytes(shown.bytes_in_flight));
    text
}

/// A name cannot move the cursor.
fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn number(value: f64) -> String {
    match value {
        value if value >= 10_000_000.0 => format!("{:.0}M", value / 1e6),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit as usize]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    fn shown(done: u64) -> Shown {
        let stage = ShownStage {
            name: "blur".into(),
            done,
            of: Some(200),
            queued: 3,
            each: Some(Duration::from_micros(150)),
        };
        Shown { stages: vec![stage], bytes_in_flight: 3 << 19 }
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

    fn display(form: Form) -> (Display<impl FnMut() -> Option<Shown>, Kept>, Kept) {
        let out = Kept::default();
        let mut done = 0;
        let source = move || {
            done += 50;
            (done <= 150).then(|| shown(done))
        };
        (Display { source, out: out.clone(), form, began: Instant::now(), before: None }, out)
    }

    #[test]
    fn a_line_says_rate_queue_time_and_bytes() {
        let two = Duration::from_secs(2);
        let now = line(&shown(150), Some(&shown(50)), two, Duration::from_secs(60));
        assert_eq!(now, "60.0 s | blur 150/200 (50/s, 3 queued, 150 us each) | 1.5 MiB in flight");
        assert!(line(&Shown::default(), None, Duration::ZERO, two).ends_with("| 0 B in flight"));
    }

    #[test]
    fn on_a_terminal_one_line_is_written_over_and_the_last_one_stays() {
        let (mut display, out) = display(Form::Terminal);
        assert!(display.show(false) && display.show(false) && !display.show(true));
        let text = out.text();
        assert_eq!(text.matches('\r').count(), 3);
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.ends_with('\n') && text.contains("blur 150/200"), "{text:?}");
    }

    #[test]
    fn elsewhere_there_are_plain_lines_and_they_end_with_the_source() {
        let (mut display, out) = display(Form::Plain);
        while display.show(false) {}
        let text = out.text();
        assert_eq!(text.lines().count(), 4);
        assert!(!text.contains(['\r', '\x1b']) && text.lines().last().unwrap().contains("150/200"), "{text}");
    }

    #[test]
    fn dropping_it_writes_the_last_line_and_off_writes_nothing() {
        let out = Kept::default();
        drop(ProgressDisplay::plain(|| Some(shown(7)), out.clone(), Duration::from_secs(3600)));
        assert!(out.text().contains("blur 7/200") && out.text().lines().count() == 1, "{}", out.text());
        drop(ProgressDisplay::off());
    }

    #[test]
    fn a_name_cannot_move_the_cursor_and_a_long_list_is_cut() {
        let stage = |index: usize| ShownStage { name: format!("a\x1b[2J{index}"), ..ShownStage::default() };
        let shown = Shown { stages: (0..MAX_STAGES + 5).map(stage).collect(), bytes_in_flight: 0 };
        let text = line(&shown, None, Duration::from_secs(1), Duration::from_secs(1));
        assert!(!text.contains('\x1b') && text.contains("and 5 more"), "{text}");
    }
}
