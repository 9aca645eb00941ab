//! The output of a host, as lines of at most [`MAX_LINE`] bytes, and the recognition of the script's own
//! lines.

use super::limits::MAX_LINE;

/// Cuts a stream of bytes into lines.
#[derive(Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Takes bytes that came, and passes on each line that is whole by now, or has the largest length.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.begun.len();
            let end = bytes.iter().take(room).position(|&byte| byte == b'\n');
            let (part, behind) = match end {
                Some(end) => (&bytes[..end], &bytes[end + 1..]),
                None => bytes.split_at(bytes.len().min(room)),
            };
            bytes = behind;
            self.begun.extend_from_slice(part);
            if end.is_some() || self.begun.len() == MAX_LINE {
                line(&self.begun);
                self.begun.clear();
            }
        }
    }

    /// Passes on the last line, if it has no end.
    pub(super) fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.begun.is_empty() {
            line(&self.begun);
            self.begun.clear();
        }
    }
}

/// The messages of the script on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The host has everything that it needs, and waits for the word to start.
    Ready,
    /// The program runs.
    Started,
    /// The program has said that it is the host with this number.
    Joined(u16),
    /// The program has ended with this status.
    Ended(u8),
}

/// Tells the script's lines from the program's. The script begins each of its lines with a line break. Where
/// the program had ended its last line, that makes an empty line, so an empty line is held back until the
/// next line is known.
pub(super) struct Marks {
    mark: Vec<u8>,
    empty: bool,
}

impl Marks {
    pub(super) fn new(mark: &str) -> Self {
        Marks { mark: format!("{mark} ").into_bytes(), empty: false }
    }

    /// Returns the message of a line of the script, and passes on the program's lines.
    pub(super) fn sort(&mut self, line: &[u8], mut program: impl FnMut(&[u8])) -> Option<Mark> {
        let was_empty = std::mem::replace(&mut self.empty, line.is_empty());
        if let Some(said) = line.strip_prefix(&self.mark[..]) {
            return match said {
                b"ready" => Some(Mark::Ready),
                b"started" => Some(Mark::Started),
                said => {
                    let (what, number) = str::from_utf8(said).ok()?.split_once(' ')?;
                    match what {
                        "joined" => number.parse().ok().map(Mark::Joined),
                        "ended" => number.parse().ok().map(Mark::Ended),
                        _ => None,
                    }
                }
            };
        }
        if was_empty {
            program(b"");
        }
        if !line.is_empty() {
            program(line);
        }
        None
    }

    /// Handles the end of the output.
    pub(super) fn finish(&mut self, mut program: impl FnMut(&[u8])) {
        if std::mem::take(&mut self.empty) {
            program(b"");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_they_end_and_where_they_are_too_long() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        let long = vec![b'x'; 2 * MAX_LINE + 3];
        for part in [&b"a\n\nb"[..], b"c", b"\n", &long, b"\nlast"] {
            lines.take(part, |line| found.push(line.to_vec()));
            assert!(lines.begun.len() < MAX_LINE);
        }
        lines.finish(|line| found.push(line.to_vec()));
        lines.finish(|line| found.push(line.to_vec()));
        let lengths: Vec<_> = found.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 0, 2, MAX_LINE, MAX_LINE, 3, 4]);
        assert_eq!((&found[2][..], &found[6][..]), (&b"bc"[..], &b"last"[..]));
    }

    #[test]
    fn the_scripts_lines_are_its_own_and_leave_no_trace() {
        let mut marks = Marks::new("m");
        let (mut shown, mut said) = (Vec::new(), Vec::new());
        let came = "\nm ready\n\nm started\n\na\n\nm joined 258\nm joined x\n\n\nm ended 3\nm ended 256\nm what\nm\n\nm ended 4\n\n";
        for line in came.split_terminator('\n') {
            said.extend(
                marks.sort(line.as_bytes(), |line| shown.push(String::from_utf8_lossy(line).into_owned())),
            );
        }
        marks.finish(|line| shown.push(String::from_utf8_lossy(line).into_owned()));
        assert_eq!(said, [Mark::Ready, Mark::Started, Mark::Joined(258), Mark::Ended(3), Mark::Ended(4)]);
        assert_eq!(shown, ["", "a", "", "m", ""]);
    }
}
