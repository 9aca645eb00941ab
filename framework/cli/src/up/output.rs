//! Shows the output of the hosts: each line behind its host's name, whole lines only.
//!
//! The text is untrusted. On a terminal no character of it moves the cursor, changes the title or reverses
//! the order of letters: all such characters are spelled out, except colours, which end with their line. In a
//! file the text stays as the host wrote it.

use std::io::{self, IsTerminal, Write};

use tensorpost_watch::draw::is_odd;

use super::hosts::Host;
use super::limits::MAX_ALIGNED;

/// One of the two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The style of lines on an output.
#[derive(Clone, Copy)]
struct Style {
    terminal: bool,
    colour: bool,
}

/// Writes the lines of all hosts.
pub(super) struct Printer {
    names: Vec<String>,
    out: Style,
    err: Style,
}

/// The colours of the names, in turn: cyan, yellow, green, magenta, blue, red.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

impl Printer {
    pub(super) fn new(hosts: &[Host]) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|value| value != "dumb");
        let style = |terminal| Style { terminal, colour: terminal && wanted };
        Printer {
            names: aligned(hosts),
            out: style(io::stdout().is_terminal()),
            err: style(io::stderr().is_terminal()),
        }
    }

    /// Appends a line of a host to `text`.
    pub(super) fn line(&self, host: usize, stream: Stream, line: &[u8], text: &mut Vec<u8>) {
        let style = match stream {
            Stream::Out => self.out,
            Stream::Err => self.err,
        };
        let name = self.names.get(host).map_or("?", String::as_str);
        if style.colour {
            let colour = COLOURS[host % COLOURS.len()];
            text.extend_from_slice(format!("\x1b[{colour}m{name} |\x1b[0m ").as_bytes());
        } else {
            text.extend_from_slice(format!("{name} | ").as_bytes());
        }
        if style.terminal {
            plain(line, style.colour, text);
        } else {
            text.extend_from_slice(line);
        }
        text.push(b'\n');
    }

    /// Writes whole lines.
    pub(super) fn put(&self, stream: Stream, text: &[u8]) -> io::Result<()> {
        let write = |to: &mut dyn Write| to.write_all(text).and_then(|()| to.flush());
        match stream {
            _ if text.is_empty() => Ok(()),
            Stream::Out => write(&mut io::stdout().lock()),
            Stream::Err => write(&mut io::stderr().lock()),
        }
    }
}

/// Prints a note of `up` itself. It ignores errors: if nobody reads, the hosts still need looking after.
pub(super) fn note(text: &str) {
    let _ = io::stderr().write_all(format!("tensorpost up: {text}\n").as_bytes());
}

/// Returns the names of the hosts, padded to one width where none is very long.
fn aligned(hosts: &[Host]) -> Vec<String> {
    let widest = hosts.iter().map(|host| host.label.len()).max().unwrap_or_default().min(MAX_ALIGNED);
    hosts.iter().map(|host| format!("{:widest$}", host.label)).collect()
}

/// Appends a line in a form that is safe on a terminal.
fn plain(line: &[u8], colour: bool, text: &mut Vec<u8>) {
    let line = String::from_utf8_lossy(line);
    let mut rest = line.strip_suffix('\r').unwrap_or(&line);
    let mut coloured = false;
    while let Some(letter) = rest.chars().next() {
        if colour && let Some(end) = colouring(rest) {
            text.extend_from_slice(&rest.as_bytes()[..end]);
            coloured = true;
            rest = &rest[end..];
            continue;
        }
        let (shown, behind) = rest.split_at(letter.len_utf8());
        if letter == '\t' || !is_odd(letter) {
            text.extend_from_slice(shown.as_bytes());
        } else {
            text.extend(letter.escape_default().map(|letter| letter as u8));
        }
        rest = behind;
    }
    if coloured {
        text.extend_from_slice(b"\x1b[0m");
    }
}

/// Returns the length of the escape sequence at the beginning of a text, if it only chooses colours (ECMA-48,
/// SGR).
fn colouring(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.bytes().position(|byte| !(byte.is_ascii_digit() || byte == b';' || byte == b':'))?;
    (parameters.as_bytes()[end] == b'm').then_some("\x1b[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &[u8], colour: bool) -> String {
        let mut text = Vec::new();
        plain(line, colour, &mut text);
        String::from_utf8(text).expect("it is text")
    }

    #[test]
    fn nothing_that_a_host_says_moves_the_cursor() {
        let title = b"\x1b]0;root@here\x07 \x1b[2J \x9b2J \xc2\x9b2J \r\x08 \xe2\x80\xaeabc \xff";
        for colour in [false, true] {
            let text = shown(title, colour);
            assert!(!text.chars().any(is_odd), "{text:?}");
            assert!(text.starts_with("\\u{1b}]0;root@here\\u{7}") && text.contains("\\u{202e}abc"), "{text}");
        }
        assert_eq!(shown("a\tü 😀\r".as_bytes(), true), "a\tü 😀");
    }

    #[test]
    fn colours_end_with_their_line_and_are_spelled_out_where_there_are_none() {
        assert_eq!(shown(b"\x1b[2m\x1b[38;5;1mred", true), "\x1b[2m\x1b[38;5;1mred\x1b[0m");
        assert_eq!(shown(b"\x1b[1mred", false), "\\u{1b}[1mred");
        for not in ["\x1b[", "\x1b[1", "\x1b[?25l", "\x1b[1 m", "\x1b[1A"] {
            assert!(!shown(not.as_bytes(), true).contains('\x1b'), "{not:?}");
        }
    }

    #[test]
    fn lines_stand_behind_the_names_of_their_hosts() {
        let host = |label: &str| Host { target: label.to_owned(), label: label.to_owned() };
        let plain = Style { terminal: false, colour: false };
        let coloured = Style { terminal: true, colour: true };
        let printer = Printer { names: aligned(&[host("a"), host("gpu2")]), out: plain, err: coloured };
        let mut text = Vec::new();
        printer.line(0, Stream::Out, b"one \x1b[2J", &mut text);
        printer.line(1, Stream::Err, b"two \x1b[2J", &mut text);
        let text = String::from_utf8(text).expect("it is text");
        assert_eq!(text, "a    | one \x1b[2J\n\x1b[33mgpu2 |\x1b[0m two \\u{1b}[2J\n");
    }
}
