//! `tensorpost log`.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use clap::Args;
use tensorpost_watch::console::{ConsoleError, LogLine, Severity};
use tensorpost_watch::draw::printable;

use super::{Target, choose, put};

/// How often new records are polled.
const EVERY: Duration = Duration::from_millis(250);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Follow the log: print new records until the node ends
    #[arg(long, short)]
    follow: bool,
    /// Number of earlier records to print
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 50)]
    lines: usize,
    /// Print a line of JSON for each record
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut console = choose::connect(&arguments.target)?;
    let mut lines = console.log(0)?;
    let mut last = lines.last().map_or(0, |line| line.number);
    lines.drain(..lines.len().saturating_sub(arguments.lines));
    write(&lines, arguments.json)?;
    if !arguments.follow {
        return Ok(());
    }
    loop {
        sleep(EVERY);
        let lines = match console.log(last) {
            Err(ConsoleError::Ended) => return Ok(()),
            lines => lines?,
        };
        if let Some(first) = lines.first().filter(|first| first.number > last + 1) {
            eprintln!("{} records came too fast to be shown", first.number - last - 1);
        }
        last = lines.last().map_or(last, |line| line.number);
        write(&lines, arguments.json)?;
    }
}

fn write(lines: &[LogLine], json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    for line in lines {
        text += &if json { serde_json::to_string(line)? } else { plain(line) };
        text.push('\n');
    }
    put(&text)?;
    Ok(())
}

/// Formats a record as the usual subscriber does.
pub(super) fn plain(line: &LogLine) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(line.unix_ms);
    let severity = match line.severity {
        Severity::Error => "ERROR",
        Severity::Warn => "WARN",
        Severity::Info => "INFO",
        Severity::Debug => "DEBUG",
        Severity::Trace => "TRACE",
    };
    let host = line.host.as_deref().map_or_else(String::new, |host| format!(" on {}", printable(host)));
    let worker = line.worker.as_deref().map(|worker| format!(" [{}{host}]", printable(worker)));
    // The node has escaped its texts: a line break in them shows that the text goes on.
    let (target, text) = (printable(&line.target), &line.text);
    format!(
        "{} {severity:>5} {target}{}: {text}",
        humantime::format_rfc3339_millis(at),
        worker.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_host_has_it_beside_the_worker() {
        let line = |host: Option<&str>| LogLine {
            number: 1,
            unix_ms: 0,
            severity: Severity::Warn,
            host: host.map(str::to_owned),
            worker: Some("blur".to_owned()),
            target: "demo".to_owned(),
            text: "late".to_owned(),
        };
        assert!(plain(&line(None)).ends_with(" WARN demo [blur]: late"));
        assert!(plain(&line(Some("1 left"))).ends_with(" WARN demo [blur on 1 left]: late"));
    }
}
