//! `tensorpost doctor`: prints the findings of the doctor.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;

use clap::Args;
use tensorpost_watch::doctor::{Again, Check, Options, Report, Status, examine, run_task};
use tensorpost_watch::draw::printable;

/// Finds out why a node cannot run on this machine, or runs slower or smaller than it could.
///
/// The doctor takes the same steps as a node and its workers: it starts processes that share memory, on the
/// host and on each GPU. The exit status is 0 if all is well, 1 if a node works but is slower or smaller than
/// it could be, and 2 if it will not work.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print JSON: {checks: [{id, status, found, needed, why, fix}], versions}; status is ok, limited or
    /// broken
    #[arg(long)]
    json: bool,
    /// Print text to paste into an issue
    #[arg(long, conflicts_with = "json")]
    for_issue: bool,
    /// Program of `NodeBuilder::worker_program`, if workers do not run the node's own program
    #[arg(long, value_name = "PATH")]
    worker_program: Option<PathBuf>,
    /// Number of processes of the planned node, itself included
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    processes: u64,
    /// Bytes of `NodeBuilder::host_budget`; by default 4 GiB
    #[arg(long, value_name = "BYTES")]
    host_budget: Option<u64>,
    /// File of `NodeBuilder::trace`; by default TENSORPOST_TRACE
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The folder in which proc, sys and dev are looked for
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
    /// The task of this process, for the doctor that started it
    #[arg(long, hide = true)]
    task: Option<String>,
}

impl Doctor {
    /// Prints the report, and ends the process with its status.
    pub(crate) fn run(self) -> ! {
        if let Some(task) = self.task {
            std::process::exit(run_task(&task));
        }
        let mut options = Options::new(Again::with(["doctor", "--task"]));
        options.worker_program = self.worker_program;
        options.processes = self.processes;
        options.trace = self.trace;
        options.root = self.root;
        if let Some(bytes) = self.host_budget {
            options.host_budget = bytes;
        }
        let report = examine(&options);
        let text = if self.json {
            serde_json::to_string_pretty(&report).unwrap_or_else(|error| error.to_string()) + "\n"
        } else if self.for_issue {
            for_issue(&report)
        } else {
            let is_terminal = stdout().is_terminal();
            let colour = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            plain(&report, &Look { unicode: is_utf8(|name| std::env::var(name).ok()), colour })
        };
        // If nobody reads, the status still has the result.
        let mut out = stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        std::process::exit(match report.status() {
            Status::Ok => 0,
            Status::Limited => 1,
            Status::Broken => 2,
        })
    }
}

/// The look of the text.
#[derive(Clone, Copy, Debug)]
struct Look {
    unicode: bool,
    colour: bool,
}

impl Look {
    fn mark(self, status: Status) -> String {
        let (unicode, ascii, colour) = match status {
            Status::Ok => ("✓", "ok", "32"),
            Status::Limited => ("!", "! ", "33"),
            Status::Broken => ("✗", "x ", "31"),
        };
        let mark = if self.unicode { unicode } else { ascii };
        if self.colour { format!("\x1b[{colour}m{mark}\x1b[0m") } else { mark.to_owned() }
    }
}

/// Returns whether the locale is one of UTF-8; the first of the three variables that is set decides.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| variable(name).filter(|text| !text.is_empty()));
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Returns the report as text: one line a check and, below a check that failed, the requirement and the
/// remedy.
fn plain(report: &Report, look: &Look) -> String {
    let mut text = String::new();
    let width = report.checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    // Formatting into a string does not fail.
    for check in &report.checks {
        let Check { id, found, .. } = check;
        let _ = writeln!(text, "{} {id:width$}  {}", look.mark(check.status), tame(found));
        let _ = write!(text, "{}", remedy(check));
    }
    let count = |status| report.checks.iter().filter(|check| check.status == status).count();
    let verdict = match report.status() {
        Status::Ok => "all is well",
        Status::Limited => "a node works, slower or smaller than it could",
        Status::Broken => "a node will not work here as it should",
    };
    let _ = writeln!(
        text,
        "\n{verdict}: {} checks, {} limited, {} broken",
        report.checks.len(),
        count(Status::Limited),
        count(Status::Broken)
    );
    text
}

fn remedy(check: &Check) -> String {
    if check.status == Status::Ok {
        return String::new();
    }
    let Check { needed, why, fix, .. } = check;
    format!("      needs  {}: {}\n      fix    {}\n", tame(needed), tame(why), tame(fix))
}

/// Returns the report for a reader elsewhere: versions first, in a block that keeps its lines.
fn for_issue(report: &Report) -> String {
    let mut text = String::from("```text\n");
    for (name, version) in &report.versions {
        let _ = writeln!(text, "{name}: {}", tame(version));
    }
    text.push('\n');
    text += &plain(report, &Look { unicode: false, colour: false });
    text + "```\n"
}

/// Removes characters that could move a terminal's cursor, or end a line: parts of the text come from the
/// environment.
fn tame(text: &str) -> String {
    printable(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn check(status: Status) -> Check {
        let [id, found, needed, why, fix] =
            ["descriptors", "32", "64", "workers", "ulimit -n"].map(str::to_owned);
        Check { id, status, found, needed, why, fix }
    }

    fn report(checks: Vec<Check>) -> Report {
        Report { checks, versions: BTreeMap::from([("kernel".to_owned(), "Linux 6".to_owned())]) }
    }

    #[test]
    fn a_check_is_a_line_and_a_failure_says_what_to_do() {
        let text = plain(
            &report(vec![check(Status::Ok), check(Status::Broken)]),
            &Look { unicode: true, colour: false },
        );
        let expected = "✓ descriptors  32\n✗ descriptors  32\n      needs  64: workers\n      fix    ulimit -n\n\n\
                        a node will not work here as it should: 2 checks, 0 limited, 1 broken\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_utf8_and_a_terminal_all_is_ascii() {
        let all = report(vec![check(Status::Ok), check(Status::Limited), check(Status::Broken)]);
        let text = for_issue(&all);
        assert!(text.is_ascii() && !text.contains('\x1b'), "{text}");
        assert!(
            text.starts_with("```text\nkernel: Linux 6\n\nok descriptors") && text.ends_with("```\n"),
            "{text}"
        );
        assert!(plain(&all, &Look { unicode: false, colour: true }).contains("\x1b[31mx \x1b[0m"));
    }

    #[test]
    fn the_first_variable_that_says_anything_names_the_locale() {
        let of = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(of(&[("LANG", "en_GB.UTF-8")]) && of(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(
            !of(&[])
                && !of(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")])
                && of(&[("LC_ALL", ""), ("LANG", "C.UTF-8")])
        );
    }

    #[test]
    fn what_comes_from_the_environment_moves_no_cursor() {
        assert_eq!(tame("a\x1b[2Jb\nc"), "a [2Jb c");
    }
}
