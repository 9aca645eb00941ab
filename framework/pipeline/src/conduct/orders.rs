//! Orders to a running pipeline from outside: from the program, from its terminal, from the node.
//!
//! Used by the conductor, from the start of the sources to the last answer. **On cancellation** of a wait no
//! order is lost.

use std::future::Future;
use std::pin::Pin;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::Command;

/// An order from outside.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutsideOrder {
    /// A command of the program.
    Command(Command),
    /// Ctrl-C or `SIGTERM`.
    Signal,
    /// The node shuts down.
    NodeStops,
}

/// See the module.
pub(super) struct Orders<'o> {
    commands: mpsc::UnboundedReceiver<Command>,
    /// `None` if signals do not count.
    signals: Option<(Signal, Signal)>,
    /// Resolves when the node shuts down; `None` after that.
    node_stops: Option<Pin<Box<dyn Future<Output = ()> + 'o>>>,
}

impl<'o> Orders<'o> {
    /// `signals`: whether Ctrl-C and `SIGTERM` count.
    pub(super) fn new(
        commands: mpsc::UnboundedReceiver<Command>,
        signals: bool,
        node_stops: impl Future<Output = ()> + 'o,
    ) -> std::io::Result<Self> {
        let both =
            || Ok::<_, std::io::Error>((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?));
        let signals = if signals { Some(both()?) } else { None };
        Ok(Orders { commands, signals, node_stops: Some(Box::pin(node_stops)) })
    }

    /// Waits for the next order. A program that has dropped its handle gives no more commands.
    pub(super) async fn next(&mut self) -> OutsideOrder {
        let Orders { commands, signals, node_stops } = self;
        let signals = async {
            let (interrupt, terminate) = signals.as_mut()?;
            tokio::select! {
                signal = interrupt.recv() => signal,
                signal = terminate.recv() => signal,
            }
        };
        let stops = async {
            node_stops.as_mut()?.await;
            Some(())
        };
        tokio::select! {
            Some(command) = commands.recv() => OutsideOrder::Command(command),
            Some(()) = signals => OutsideOrder::Signal,
            Some(()) = stops => {
                *node_stops = None;
                OutsideOrder::NodeStops
            }
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::FutureExt;

    use super::*;

    #[test]
    fn each_order_is_heard_once_and_nobody_waits_for_a_program_that_let_go() {
        let (program, commands) = mpsc::unbounded_channel();
        let mut orders = Orders::new(commands, false, std::future::ready(())).unwrap();
        program.send(Command::Cancel).unwrap();
        drop(program);
        let mut heard = vec![orders.next().now_or_never(), orders.next().now_or_never()];
        heard.sort_by_key(|order| *order == Some(OutsideOrder::NodeStops));
        assert_eq!(heard, [Some(OutsideOrder::Command(Command::Cancel)), Some(OutsideOrder::NodeStops)]);
        assert_eq!(orders.next().now_or_never(), None);
    }
}
