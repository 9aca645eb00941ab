//! The live page of a node: figures for a browser, for Prometheus and for probes, over HTTP.
//!
//! There is no page unless the program calls `Node::serve`, or the environment variable
//! `TENSORPOST_HTTP` names an address. The page only reads. A thread of its own asks the supervisor as the
//! console does, and shares one snapshot among all requests within a moment, so a request makes no actor wait
//! (CON-1). Everything about a connection is bounded; see `http`. A network socket has no user, so everybody
//! who reaches the address gets an answer (CON-2 holds only for the console).
//!
//! **On a crash** of the node the address is free. If the thread cannot go on, it says so in the log, and the
//! node goes on.
//!
//! | file | holds |
//! |---|---|
//! | `http` | connections, their bounds, the refusal of bad requests |
//! | `pages` | the answer at each path |
//! | `prometheus` | the metrics, in Prometheus' text form |
//! | `page.html` | the page itself: one file, nothing is loaded from elsewhere |

mod http;
mod pages;
mod prometheus;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use tensorpost_core::api::watch::serving::Serving;
use tensorpost_core::api::watch::{Private, Watched};

use self::http::Thread;
use self::pages::Pages;

/// The environment variable that names an address to serve the live page at: `127.0.0.1:9464`, or a port
/// alone.
const VARIABLE: &str = "TENSORPOST_HTTP";

/// Begins to serve, and returns the thread and the address.
pub(crate) fn start(addresses: impl ToSocketAddrs, node: Watched) -> io::Result<(Serving, SocketAddr)> {
    let listener = Private::new(TcpListener::bind(addresses)?);
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let is_loopback = address.ip().to_canonical().is_loopback();
    let mut pages = Pages::new(node.clone());
    let thread = Serving::start("tp-http", move |end| {
        let answer = move |path: &str| pages.answer(path);
        let thread = Thread { listener, is_loopback, end, answer };
        if let Err(error) = thread.run() {
            node.say(format!("the live page has ended: it cannot wait for events: {error}"));
        }
    })?;
    let who = if is_loopback { "" } else { ", to everybody who reaches this machine" };
    tracing::info!(target: "tensorpost::node", "the live page is at http://{address}/{who}");
    Ok((thread, address))
}

/// Starts the server that the environment asks for, if any. If the address cannot be bound, the node runs
/// without it.
pub(crate) fn start_as_environment_asks(node: Watched) -> Option<Serving> {
    let variable = std::env::var(VARIABLE).ok().filter(|variable| !variable.is_empty())?;
    let started = match port_alone(&variable) {
        Some(port) => start(("127.0.0.1", port), node),
        None => start(variable.as_str(), node),
    };
    match started {
        Ok((thread, _)) => Some(thread),
        Err(error) => {
            tracing::warn!(
                target: "tensorpost::node",
                %error,
                "this node has no live page: {VARIABLE}={variable} is no address that it can have; write 127.0.0.1:9464"
            );
            None
        }
    }
}

/// Reads a port without an address, which means this machine only.
fn port_alone(text: &str) -> Option<u16> {
    text.strip_prefix(':').unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_machine() {
        assert_eq!((port_alone("9464"), port_alone(":9464")), (Some(9464), Some(9464)));
        assert_eq!((port_alone("0.0.0.0:9464"), port_alone("70000"), port_alone("")), (None, None, None));
    }
}
