//! `tensorpost stop`: stops a node and, while that takes long, shows what holds it up. A node waits for
//! messages under way. A program that does not know of the stop, and goes on sending, keeps it waiting until
//! the time is up.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use tensorpost_watch::console::{ConsoleError, Figures, LinkFigures, NodeSnapshot, Request};
use tensorpost_watch::draw::{number, printable, time as in_words};

use super::{Target, choose, put, time};

/// How often the command checks whether the node has ended.
const EVERY: Duration = Duration::from_millis(100);
/// After this time, and then at this interval, the user is told what holds the node up.
const TOLD: Duration = Duration::from_secs(2);
/// Number of senders that are named.
const MOST: usize = 3;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Kill processes that have not finished after this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    within: Duration,
    /// Do not wait for the node to end
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut console = choose::connect(&arguments.target)?;
    let pid = console.hello().pid;
    let began = Instant::now();
    match console.ask(&Request::Stop { within: arguments.within }) {
        Ok(_) => {}
        Err(ConsoleError::Ended) => {
            put(&format!("node {pid} had ended before\n"))?;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    if arguments.no_wait {
        put(&format!("node {pid} is stopping\n"))?;
        return Ok(());
    }
    // The program may go on after the node has ended, or end with it: then the connection ends too.
    let mut earlier: Option<(Instant, NodeSnapshot)> = None;
    loop {
        match console.snapshot() {
            Ok(snapshot) => {
                match &earlier {
                    Some((since, before)) if since.elapsed() >= TOLD => {
                        let left = arguments.within.saturating_sub(began.elapsed());
                        eprintln!(
                            "{}",
                            holds_up(&snapshot.standing, &Figures::between(before, &snapshot), left)
                        );
                        earlier = Some((Instant::now(), snapshot));
                    }
                    Some(_) => {}
                    None => earlier = Some((Instant::now(), snapshot)),
                }
                sleep(EVERY);
            }
            Err(ConsoleError::Ended) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let took = in_words(began.elapsed());
    put(&format!("node {pid} has ended after {took}\n"))?;
    Ok(())
}

/// Returns the pipelines that stand, or else the activity, that hold up a node that is about to end.
fn holds_up(standing: &[String], figures: &Figures, left: Duration) -> String {
    let left = in_words(left);
    if !standing.is_empty() {
        let standing: Vec<_> = standing.iter().map(|line| printable(line)).collect();
        return format!("waiting: {}; what is left is killed in {left}", standing.join("; "));
    }
    let rate = |link: &&LinkFigures| link.messages_per_second.unwrap_or(0.0);
    let mut sending: Vec<_> = figures.links.iter().filter(|link| rate(link) > 0.0).collect();
    sending.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let sending: Vec<_> = sending
        .iter()
        .take(MOST)
        .map(|link| format!("`{}` sends `{}` {} messages a second", link.from, link.to, number(rate(link))))
        .collect();
    let open: usize =
        figures.processes.iter().filter_map(|process| process.open).fold(0, usize::saturating_add);
    match sending.is_empty() {
        true => format!("waiting: {open} messages are not done with; what is left is killed in {left}"),
        false => format!(
            "waiting: {} and goes on, as if it had not heard of the stop: a program ends with `run_until_ctrl_c`, an actor \
             with `env.stopping()`; what is left is killed in {left}",
            sending.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use tensorpost_watch::console::sample::snapshot;

    use super::*;

    #[test]
    fn who_goes_on_sending_is_named() {
        let (before, now) = (snapshot(0, [1, 20]), snapshot(1_000_000_000, [1, 120]));
        let text = holds_up(&[], &Figures::between(&before, &now), Duration::from_secs(28));
        assert!(text.contains("`camera.0` sends `stage` 100 messages a second and goes on"), "{text}");
        assert!(text.contains("killed in 28.0 s"), "{text}");
        let figures = Figures::between(&now, &snapshot(2_000_000_000, [1, 120]));
        let quiet = holds_up(&[], &figures, Duration::ZERO);
        assert!(quiet.contains("3 messages are not done with"), "{quiet}");
        let stands = "pipeline `video`: `detect` has been in a call of its own for 12 s".to_owned();
        let text = holds_up(&[stands], &figures, Duration::ZERO);
        assert!(text.starts_with("waiting: pipeline `video`: `detect` has been in a call"), "{text}");
    }
}
