//! Connections of the live page: HTTP/1.1, only `GET`, one request each.
//!
//! One thread serves all of them and waits for none. Bounded (MBX-2) are the number of connections, the
//! length of a header, the time that a header may take, and the time in which an answer must be read. If
//! there is no room, the oldest connection that has not asked yet makes room. So a client that asks at once
//! is answered, no matter how many others ask nothing.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use tensorpost_core::api::watch::Private;
use tensorpost_core::api::watch::serving::{self, End, NO_DESCRIPTOR};

use crate::limits::{MAX_LIVE_CONNECTIONS, MAX_LIVE_FIELDS, MAX_LIVE_HEADER};

/// How long a header may take.
const READ: Duration = Duration::from_secs(5);
/// How long an answer may take to be read.
const WRITE: Duration = Duration::from_secs(10);
/// How long the end of a connection may take. Late bytes of the client are read and dropped: otherwise the
/// system would drop the answer with them.
const LINGER: Duration = Duration::from_secs(1);

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) status: &'static str,
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
}

impl Page {
    /// Makes an answer of one line of text.
    pub(super) fn text(status: &'static str, text: impl Into<String>) -> Page {
        Page { status, kind: "text/plain; charset=utf-8", body: (text.into() + "\n").into_bytes() }
    }

    fn into_bytes(self) -> Vec<u8> {
        let Page { status, kind, body } = self;
        // The page loads nothing from elsewhere, and no foreign page can show or read it.
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
             Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src 'self'; \
             script-src 'unsafe-inline'; style-src 'unsafe-inline'\r\n{}\r\n",
            body.len(),
            if status.starts_with("405") { "Allow: GET\r\n" } else { "" }
        )
        .into_bytes();
        bytes.extend_from_slice(&body);
        bytes
    }
}

/// The thread of one address.
pub(super) struct Thread<A> {
    pub(super) listener: Private<TcpListener>,
    /// Whether only this machine reaches it.
    pub(super) is_loopback: bool,
    pub(super) end: End,
    /// Answers a path.
    pub(super) answer: A,
}

struct Connection {
    stream: Private<TcpStream>,
    until: Instant,
    state: State,
}

enum State {
    Reading(Vec<u8>),
    Writing(Vec<u8>, usize),
    Ending,
}

impl<A: FnMut(&str) -> Page> Thread<A> {
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut connections: Vec<Connection> = Vec::new();
        let mut deaf_until: Option<Instant> = None;
        while !self.end.is_asked_for() {
            let now = Instant::now();
            deaf_until = deaf_until.filter(|until| now < *until);
            // Late connections go first, and make room for new ones.
            connections.retain_mut(|connection| connection.until > now || connection.is_late(now));
            let has_room = connections.len() < MAX_LIVE_CONNECTIONS || oldest_silent(&connections).is_some();
            let listens = has_room && deaf_until.is_none();
            let next = connections.iter().map(|connection| connection.until).chain(deaf_until).min();
            let mut fds = vec![
                PollFd::new(&self.end, PollFlags::IN),
                // Without room the listener is not polled, or a waiting client would wake this thread again
                // and again.
                PollFd::new(&self.listener, if listens { PollFlags::IN } else { PollFlags::empty() }),
            ];
            fds.extend(connections.iter().map(|connection| {
                let for_room = matches!(connection.state, State::Writing(..));
                PollFd::new(&connection.stream, if for_room { PollFlags::OUT } else { PollFlags::IN })
            }));
            let ready = serving::ready(fds, next)?;
            let mut at = 2;
            connections.retain_mut(|connection| {
                at += 1;
                !ready[at - 1] || connection.go_on(self.is_loopback, &mut self.answer)
            });
            // New connections come last, because `ready` counts the old ones by position.
            if ready[1] && listens {
                deaf_until = self.accept(&mut connections);
            }
        }
        Ok(())
    }

    /// Takes connections. Returns until when to take none, if the system has no descriptor.
    fn accept(&mut self, connections: &mut Vec<Connection>) -> Option<Instant> {
        let taken = serving::accept(|| {
            if connections.len() >= MAX_LIVE_CONNECTIONS {
                connections.swap_remove(oldest_silent(connections).ok_or(io::ErrorKind::WouldBlock)?);
            }
            let (stream, _) = self.listener.accept()?;
            if stream.set_nonblocking(true).is_ok() {
                let until = Instant::now() + READ;
                let mut connection =
                    Connection { stream: Private::new(stream), until, state: State::Reading(Vec::new()) };
                if connection.go_on(self.is_loopback, &mut self.answer) {
                    connections.push(connection);
                }
            }
            Ok(())
        });
        taken.err().map(|_| Instant::now() + NO_DESCRIPTOR)
    }
}

/// Returns the oldest connection that has not asked, or that is at its end.
fn oldest_silent(connections: &[Connection]) -> Option<usize> {
    let silent = connections.iter().enumerate().filter(|(_, of)| !matches!(of.state, State::Writing(..)));
    silent.min_by_key(|(_, of)| of.until).map(|(index, _)| index)
}

impl Connection {
    /// Handles a connection whose time is up. Returns true if it stays for the answer that says so.
    fn is_late(&mut self, now: Instant) -> bool {
        let State::Reading(_) = self.state else { return false };
        self.begin(Page::text("408 Request Timeout", "the request did not come in time"), now);
        self.write()
    }

    fn begin(&mut self, page: Page, now: Instant) {
        (self.state, self.until) = (State::Writing(page.into_bytes(), 0), now + WRITE);
    }

    /// Reads and writes as far as it can. Returns false if the connection is at its end.
    fn go_on(&mut self, is_loopback: bool, answer: &mut impl FnMut(&str) -> Page) -> bool {
        match &mut self.state {
            State::Reading(_) => match self.read(is_loopback) {
                Ok(None) => true,
                Ok(Some(asked)) => {
                    let page = asked.map_or_else(|refused| refused, |path| answer(&path));
                    self.begin(page, Instant::now());
                    self.write()
                }
                Err(_) => false,
            },
            State::Writing(..) => self.write(),
            State::Ending => {
                let mut rest = [0; 4096];
                !matches!((&*self.stream).read(&mut rest), Ok(0))
            }
        }
    }

    /// Reads the header. When it is complete, returns the path, or the answer that refuses the request.
    fn read(&mut self, is_loopback: bool) -> io::Result<Option<Result<String, Page>>> {
        let State::Reading(header) = &mut self.state else { return Ok(None) };
        loop {
            let mut bytes = [0; 2048];
            match (&*self.stream).read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => header.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(asked) = asked(header, is_loopback) {
                return Ok(Some(asked));
            }
        }
    }

    /// Writes as far as there is room. Returns false if the client is gone.
    fn write(&mut self) -> bool {
        let State::Writing(bytes, at) = &mut self.state else { return true };
        while *at < bytes.len() {
            match (&*self.stream).write(&bytes[*at..]) {
                Ok(0) => return false,
                Ok(written) => *at += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        (self.state, self.until) = (State::Ending, Instant::now() + LINGER);
        self.stream.shutdown(std::net::Shutdown::Write).is_ok()
    }
}

/// Parses a header: returns the path, or the answer that refuses the request; `None` if the header is not
/// complete.
fn asked(header: &[u8], is_loopback: bool) -> Option<Result<String, Page>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_LIVE_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let too_long = || Page::text("431 Request Header Fields Too Large", "the header is too long");
    match request.parse(header) {
        Ok(httparse::Status::Complete(length)) if length > MAX_LIVE_HEADER => return Some(Err(too_long())),
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if header.len() > MAX_LIVE_HEADER => return Some(Err(too_long())),
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => return Some(Err(too_long())),
        Err(error) => {
            return Some(Err(Page::text("400 Bad Request", format!("this is no HTTP request: {error}"))));
        }
    }
    if request.method != Some("GET") {
        return Some(Err(Page::text("405 Method Not Allowed", "only GET is answered here")));
    }
    let host = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case("host"));
    let host = host.map(|field| String::from_utf8_lossy(field.value).into_owned());
    if is_loopback && host.as_deref().is_some_and(|host| !is_this_machine(host)) {
        // A foreign page whose host name resolves to this machine could read the answer.
        return Some(Err(Page::text(
            "403 Forbidden",
            "ask for localhost, or for an address of this machine",
        )));
    }
    let path = request.path.unwrap_or_default();
    Some(Ok(path.split(['?', '#']).next().unwrap_or_default().to_owned()))
}

/// Whether the `Host` of a request is a name that only this machine can have.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_local =
        name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    is_local || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(header: &str, is_loopback: bool) -> Option<String> {
        asked(header.as_bytes(), is_loopback)
            .map(|asked| asked.unwrap_or_else(|page| page.status[..3].to_owned()))
    }

    #[test]
    fn only_a_whole_get_is_answered() {
        let said = |header: &str| status(header, true);
        assert_eq!(
            said("GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:9\r\n\r\n").as_deref(),
            Some("/metrics")
        );
        assert_eq!(said("GET / HTTP/1.0\r\n\r\n").as_deref(), Some("/"));
        assert_eq!(said("GET / HTTP/1.1\r\nHost: local"), None);
        assert_eq!(said("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n").as_deref(), Some("405"));
        assert_eq!(said("\0\x01\x02").as_deref(), Some("400"));
        assert_eq!(said("GET / HTTP/9.9\r\n\r\n").as_deref(), Some("400"));
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(MAX_LIVE_HEADER));
        assert_eq!(said(&long).as_deref(), Some("431"));
        assert_eq!(said(&(long + "\r\n\r\n")).as_deref(), Some("431"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(MAX_LIVE_FIELDS + 1));
        assert_eq!(said(&many).as_deref(), Some("431"));
    }

    #[test]
    fn a_name_that_somebody_else_gave_this_machine_is_refused() {
        let of =
            |host: &str, is_loopback| status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), is_loopback);
        for host in ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "[::1]:9464", "a.localhost"] {
            assert_eq!(of(host, true).as_deref(), Some("/"), "{host}");
        }
        for host in ["evil.example", "evil.example:9464", "10.0.0.1", "localhost.evil.example", "[::2]"] {
            assert_eq!(of(host, true).as_deref(), Some("403"), "{host}");
            assert_eq!(of(host, false).as_deref(), Some("/"), "who listens for all is asked by any name");
        }
    }
}
