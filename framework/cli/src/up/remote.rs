//! The command that ssh runs on a host, and its input: a script for a POSIX shell.
//!
//! The command line is short and contains nothing of the user's, because others may see it, and because the
//! login shell there, which may be of any kind, reads it first. Everything else comes on standard input: the
//! script, the secrets, the program. The script is one function that its last line calls, so half a script
//! does nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::Context as _;

use super::payload::{Program, Secret};

const SCRIPT: &str = include_str!("remote.sh");

/// Unsets the variables that could contradict the ones set here.
const UNSET: &str = "unset TENSORPOST_HEAD TENSORPOST_LISTEN TENSORPOST_KEY_FILE TENSORPOST_CA_FILE TENSORPOST_CERT_FILE \
                     TENSORPOST_CERT_KEY_FILE TENSORPOST_JOINED_FILE\n";

/// The task of the hosts of a run.
pub(super) struct Task {
    /// Begins the lines that the script itself prints. Nobody can guess it, so no program prints such a line.
    pub(super) mark: String,
    /// A program that was asked to end is killed after this time.
    pub(super) within: Duration,
    /// After this time without a beat or word, the script ends the program.
    pub(super) silence: Duration,
    /// Where the program runs.
    pub(super) folder: OsString,
    /// Whether it may run in the home folder where that folder is missing.
    pub(super) elsewhere: bool,
    /// The program, where it is copied.
    pub(super) copy: Option<Program>,
    /// Variables that the user wants set.
    pub(super) variables: Vec<(String, OsString)>,
    /// The program and its arguments.
    pub(super) program: Vec<OsString>,
}

/// The part of a host in its node.
pub(super) struct Part {
    pub(super) is_head: bool,
    /// The variables by which it joins.
    pub(super) variables: Vec<(&'static str, String)>,
    /// The secrets by which it proves that it belongs to the node; none where the host has files of its own.
    pub(super) secrets: Vec<Secret>,
}

impl Task {
    /// Returns the script for a host.
    pub(super) fn script(&self, part: &Part) -> anyhow::Result<Vec<u8>> {
        let mut script = b"up() {\n".to_vec();
        let mut assign = |name: &str, value: &OsStr| -> anyhow::Result<()> {
            script.extend_from_slice(name.as_bytes());
            script.push(b'=');
            script.extend(quoted(value)?);
            script.push(b'\n');
            Ok(())
        };
        let flag = |is: bool| OsStr::new(if is { "yes" } else { "" });
        assign("mark", OsStr::new(&self.mark))?;
        assign("grace", OsStr::new(&seconds(self.within)))?;
        assign("silence", OsStr::new(&seconds(self.silence)))?;
        assign("head", flag(part.is_head))?;
        assign("folder", &self.folder)?;
        assign("elsewhere", flag(self.elsewhere))?;
        let tmp = self.variables.iter().rev().find(|(name, _)| name == "TMPDIR");
        assign("tmp", tmp.map_or(OsStr::new(""), |(_, value)| value.as_os_str()))?;
        assign("copy_as", self.copy.as_ref().map_or(OsStr::new(""), |copy| copy.name.as_os_str()))?;
        if let Some(copy) = &self.copy {
            assign("copy_bytes", OsStr::new(&copy.bytes.to_string()))?;
            assign("copy_sum", OsStr::new(&copy.sum))?;
            assign("copy_for", OsStr::new(copy.machine.unwrap_or_default()))?;
        }
        script.extend_from_slice(UNSET.as_bytes());
        script.extend_from_slice(b"secrets() {\n:\n");
        for Secret { name, variable, bytes } in &part.secrets {
            script.extend_from_slice(format!("secret {name} {} {variable}\n", bytes.len()).as_bytes());
        }
        // Set the user's variables for the program alone: they could have the names of the script's own
        // variables.
        script.extend_from_slice(b"}\nvariables() {\n:\n");
        for (name, value) in self.exported(part) {
            script.extend_from_slice(format!("export {name}=").as_bytes());
            script.extend(quoted(value)?);
            script.push(b'\n');
        }
        script.extend_from_slice(b"}\n");
        script.extend_from_slice(b"set -- ");
        script.extend(self.command()?);
        script.push(b'\n');
        script.extend_from_slice(SCRIPT.as_bytes());
        script.extend_from_slice(b"}\nup\n");
        Ok(script)
    }

    /// Returns the effect of the script as a line that one would type on the host. The script makes the
    /// secret files.
    pub(super) fn shown(&self, part: &Part) -> anyhow::Result<Vec<u8>> {
        let mut line = b"cd ".to_vec();
        line.extend(quoted(&self.folder)?);
        line.extend_from_slice(b" && ");
        for Secret { name, variable, .. } in &part.secrets {
            line.extend_from_slice(format!("{variable}={name} ").as_bytes());
        }
        for (name, value) in self.exported(part) {
            line.extend_from_slice(name.as_bytes());
            line.push(b'=');
            line.extend(quoted(value)?);
            line.push(b' ');
        }
        line.extend(self.command()?);
        Ok(line)
    }

    /// Returns the user's variables, and behind them, so that they win, those by which the host joins.
    fn exported<'a>(&'a self, part: &'a Part) -> impl Iterator<Item = (&'a str, &'a OsStr)> {
        let users = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_os_str()));
        users.chain(part.variables.iter().map(|(name, value)| (*name, OsStr::new(value))))
    }

    fn command(&self) -> anyhow::Result<Vec<u8>> {
        let words = self.program.iter().map(|word| quoted(word)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(words.join(&b' '))
    }
}

/// Returns the command for the login shell of a host, which sh, fish and csh read in the same way. `dd` takes
/// exactly the bytes of the script from the input.
pub(super) fn loader(script: &[u8]) -> String {
    let bytes = script.len();
    format!("exec sh -c 'eval \"$(dd bs={bytes} count=1 iflag=fullblock 2>/dev/null)\"'")
}

/// Quotes a word for a POSIX shell.
pub(super) fn quoted(word: &OsStr) -> anyhow::Result<Vec<u8>> {
    let quoted = shlex::bytes::try_quote(word.as_bytes());
    Ok(quoted.with_context(|| format!("{word:?} cannot be given to a program"))?.into_owned())
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::ffi::OsStringExt as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::up::payload::drawn_key;

    /// A shell reads quoted words, and lines of them, back as they were.
    #[test]
    fn words_arrive_as_they_are() {
        let mut words: Vec<OsString> = [
            "",
            " ",
            "a b",
            "it's",
            "\"",
            "$HOME `id` $(id)",
            "\\",
            "!x",
            "~",
            "*",
            "a\nb\n",
            "\t",
            "-n",
            "ü😀",
            "{a,b}",
            "a^b",
        ]
        .map(OsString::from)
        .to_vec();
        words.push(OsString::from_vec((1..=255).collect()));
        let task = Task {
            mark: "m".to_owned(),
            within: Duration::from_millis(1500),
            silence: Duration::from_secs(20),
            folder: "/".into(),
            elsewhere: false,
            copy: None,
            variables: Vec::new(),
            program: words.clone(),
        };
        let mut script = b"set -- ".to_vec();
        script.extend(task.command().expect("they can be said"));
        script.extend_from_slice(b"\nfor word; do printf '%s\\0' \"$word\"; done\n");
        let mut shell = Command::new("sh");
        shell.args(["-c", &loader(&script)]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("there is a shell");
        shell.stdin.take().expect("its input").write_all(&script).expect("it reads");
        let said = shell.wait_with_output().expect("it ends").stdout;
        let found: Vec<_> =
            said.split(|&byte| byte == 0).map(<[u8]>::to_vec).map(OsString::from_vec).collect();
        assert_eq!(found[..words.len()], words);
        assert_eq!(seconds(task.within), "1.500");
        assert!(quoted(OsStr::new("a\0b")).is_err());
    }

    /// A broken connection never makes a host do half of its task.
    #[test]
    fn half_of_a_script_does_nothing() {
        let task = Task {
            mark: "m".to_owned(),
            within: Duration::from_secs(1),
            silence: Duration::from_secs(1),
            folder: "/".into(),
            elsewhere: false,
            copy: None,
            variables: Vec::new(),
            program: vec!["echo".into(), "it ran".into()],
        };
        let part = Part { is_head: true, variables: Vec::new(), secrets: drawn_key().expect("a key") };
        let script = task.script(&part).expect("a script");
        for share in [1, 3, 5, 7, 9] {
            let cut = &script[..script.len() * share / 10];
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &loader(&script)])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut shell = shell.spawn().expect("there is a shell");
            shell.stdin.take().expect("its input").write_all(cut).expect("it reads");
            let output = shell.wait_with_output().expect("it ends");
            assert_eq!(
                (String::from_utf8_lossy(&output.stdout).as_ref(), output.status.success()),
                ("", false)
            );
        }
    }
}
