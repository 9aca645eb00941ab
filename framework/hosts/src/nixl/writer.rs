//! The sending end: arenas of this host, from which it writes into those of the other host.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lane::{Context, Do, Lie};
use super::steps::Step;
use super::wire::At;
use super::{Offer, Say, Took, Wrote};
use crate::frame::Run;
use crate::ids::Seq;
use crate::limits::{NIXL_DEADLINE, NIXL_PROBE_DEADLINE};

#[derive(Debug, Default)]
pub(super) struct Writer {
    routes: BTreeMap<u8, Route>,
}

#[derive(Debug)]
struct Route {
    epoch: u32,
    device: u8,
    state: State,
    slots: Vec<Slot>,
    /// Granted runs without a slot of this side, with the time of the grant.
    granted: VecDeque<(u8, Run, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Both agents are made and the probe is written, until this deadline.
    Connecting {
        until: Duration,
    },
    /// The receiver checks whether the probe's bytes are there.
    Probed {
        until: Duration,
        took: Took,
    },
    /// The same number of bytes goes by gRPC.
    Measuring {
        until: Duration,
        took: Took,
        since: Duration,
    },
    Used,
    /// The agent is being ended.
    Closing,
    /// The agent has ended.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// It is being filled, for a slot of the other side. If its route breaks meanwhile, its bytes go nowhere.
    Filled {
        to: u8,
        run: Run,
        since: Duration,
    },
    Written {
        to: u8,
        run: Run,
        since: Duration,
    },
}

impl Route {
    fn at(&self, route: u8) -> At {
        At { route, epoch: self.epoch }
    }

    fn is_open(&self) -> bool {
        !matches!(self.state, State::Closing | State::Closed)
    }

    fn close(&mut self, number: u8, context: &mut Context<'_>) {
        if self.is_open() {
            self.state = State::Closing;
            self.granted.clear();
            context.dos.push(Do::CloseOut { at: self.at(number) });
        }
    }

    /// Breaks a route after a failure or a timeout: runs that have not arrived go as pieces.
    fn fail(&mut self, number: u8, why: &str, context: &mut Context<'_>) {
        if !self.is_open() {
            return;
        }
        *context.fallen_back += 1;
        let (peer, device) = (context.session.peer(), self.device);
        tracing::warn!(
            target: "tensorpost::hosts", route = number,
            "tensors of device {device} go to {peer} by gRPC: NIXL has failed: {why}"
        );
        if let Some(link) = context.link {
            let under_way = self.slots.iter().filter_map(|slot| match slot {
                Slot::Free => None,
                Slot::Filled { run, .. } | Slot::Written { run, .. } => Some(*run),
            });
            if context.steps.does(Step::Unsend) {
                let granted = self.granted.iter().map(|(_, run, _)| *run);
                under_way.chain(granted).for_each(|run| context.session.unsend(link, &run));
            }
            context.session.narrow_all(link, device);
        }
        context.say(Say::Broken { at: self.at(number) });
        self.close(number, context);
    }

    fn fill(&mut self, number: u8, context: &mut Context<'_>) {
        let at = self.at(number);
        while self.state == State::Used
            && let Some(slot) = self.slots.iter().position(|slot| *slot == Slot::Free)
            && let Some((to, run, granted)) = self.granted.pop_front()
        {
            let since = context.now;
            context.times.sent.waited.add(since.saturating_sub(granted));
            self.slots[slot] = Slot::Filled { to, run, since };
            context.dos.push(Do::Export { at, slot: slot as u8, run }); // of NIXL_SLOTS
        }
    }
}

impl Writer {
    /// Returns the arenas of the other side that may still be written.
    pub(super) fn open(&self) -> Vec<At> {
        let open = self.routes.iter().filter(|(_, route)| route.state != State::Closed);
        open.map(|(number, route)| route.at(*number)).collect()
    }

    fn current(&mut self, at: At) -> Option<&mut Route> {
        self.routes.get_mut(&at.route).filter(|route| route.epoch == at.epoch)
    }

    /// Returns the route of an arena that the other side names: it must be one that it has offered.
    fn said(&mut self, at: At) -> Result<&mut Route, Lie> {
        self.current(at).ok_or(Lie::Route { at, what: "something" })
    }

    pub(super) fn narrow(&mut self, post: Seq, span: u16, for_good: bool, context: &mut Context<'_>) {
        let Some(link) = context.link else { return };
        let device = context.session.narrow(link, post, span);
        if let Some(device) = device.filter(|_| for_good) {
            // No span from that device is asked for any more, before the next connection.
            context.session.widen_no_more(link, device);
        }
    }

    pub(super) fn offer(
        &mut self,
        at: At,
        device: u8,
        offer: Offer,
        context: &mut Context<'_>,
    ) -> Result<(), Lie> {
        let known = self.routes.get(&at.route);
        let follows = known.is_none_or(|route| route.state == State::Closed && route.epoch < at.epoch);
        if !follows || offer.memory.bytes != context.sizes.arena() {
            return Lie::of(at, "that it offers an arena");
        }
        let until = context.now + NIXL_PROBE_DEADLINE;
        let slots = vec![Slot::Free; usize::from(context.sizes.slots)];
        let (state, granted) = (State::Connecting { until }, VecDeque::new());
        self.routes.insert(at.route, Route { epoch: at.epoch, device, state, slots, granted });
        context.dos.push(Do::Connect { at, from: device, offer });
        Ok(())
    }

    pub(super) fn connected(&mut self, at: At, took: Result<Took, String>, context: &mut Context<'_>) {
        let Some(route) = self.current(at) else { return };
        let State::Connecting { until } = route.state else { return };
        match took {
            Ok(took) => {
                route.state = State::Probed { until, took };
                context.say(Say::Probed { at });
            }
            Err(why) => route.fail(at.route, &why, context),
        }
    }

    pub(super) fn sound(&mut self, at: At, sound: bool, context: &mut Context<'_>) -> Result<(), Lie> {
        let route = self.said(at)?;
        match route.state {
            State::Probed { until, took } if sound => {
                route.state = State::Measuring { until, took, since: context.now };
                let (all, each) = (context.sizes.slot, context.sizes.ballast);
                let mut left = all;
                while left > 0 {
                    let bytes = left.min(u64::from(each)) as u32;
                    left -= u64::from(bytes);
                    context.say(Say::Ballast { at, bytes });
                }
                Ok(())
            }
            State::Probed { .. } => {
                route.fail(at.route, "what was written is not there", context);
                Ok(())
            }
            State::Closing | State::Closed => Ok(()),
            _ => Lie::of(at, "what became of a probe"),
        }
    }

    /// Handles the word that the gRPC measurement has arrived.
    pub(super) fn had(&mut self, at: At, context: &mut Context<'_>) -> Result<(), Lie> {
        let (lanes, now) = (context.sizes.lanes, context.now);
        let route = self.said(at)?;
        let State::Measuring { took, since, .. } = route.state else {
            return if route.is_open() { Lie::of(at, "that it had a probe of gRPC") } else { Ok(()) };
        };
        // As if all lanes together were that many times as fast as the measured one.
        let grpc = now.saturating_sub(since).checked_div(lanes.into()).unwrap_or(Duration::MAX);
        let chosen = took < grpc;
        let (peer, device, bytes) = (context.session.peer(), route.device, context.sizes.slot >> 20);
        tracing::info!(
            target: "tensorpost::hosts", route = at.route,
            "tensors of device {device} go to {peer} by {}: {bytes} MiB took {took:?} by NIXL, and would take {grpc:?} by {lanes} \
             lanes of gRPC", if chosen { "NIXL" } else { "gRPC" }
        );
        context.say(Say::Chosen { at, chosen });
        if chosen {
            route.state = State::Used;
        } else {
            route.close(at.route, context);
        }
        Ok(())
    }

    pub(super) fn grant(&mut self, at: At, slot: u8, run: Run, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some(link) = context.link else { return Ok(()) };
        let slots = context.sizes.slots;
        let route = self.said(at)?;
        if !route.is_open() {
            return Ok(());
        }
        let has = |other: &Slot| match other {
            Slot::Free => false,
            Slot::Filled { to, .. } | Slot::Written { to, .. } => *to == slot,
        };
        let twice = route.slots.iter().any(has) || route.granted.iter().any(|(to, ..)| *to == slot);
        if route.state != State::Used || slot >= slots || twice {
            return Lie::of(at, "that it grants a slot");
        }
        if context.session.take_run(link, &run, route.device)? {
            route.granted.push_back((slot, run, context.now));
            route.fill(at.route, context);
        } else {
            context.say(Say::Gone { at, slot });
        }
        Ok(())
    }

    pub(super) fn exported(&mut self, at: At, slot: u8, filled: bool, context: &mut Context<'_>) {
        let Some(route) = self.current(at) else { return };
        let open = route.state == State::Used;
        let Some(found) = route.slots.get_mut(usize::from(slot)) else { return };
        let Slot::Filled { to, run, since } = *found else { return };
        if open && filled {
            context.times.sent.copied.add(context.now.saturating_sub(since));
            *found = Slot::Written { to, run, since: context.now };
            let to = u64::from(to) * context.sizes.slot;
            context.dos.push(Do::Write { at, slot, to, bytes: run.bytes });
            return;
        }
        *found = Slot::Free;
        if open {
            // The run's message was aborted.
            context.say(Say::Gone { at, slot: to });
            route.fill(at.route, context);
        }
    }

    pub(super) fn written(
        &mut self,
        at: At,
        slot: u8,
        written: Result<Wrote, String>,
        context: &mut Context<'_>,
    ) {
        let Some(route) = self.current(at).filter(|route| route.state == State::Used) else { return };
        let Some(found) = route.slots.get_mut(usize::from(slot)) else { return };
        let Slot::Written { to, run, since } = *found else { return };
        match written {
            Ok(wrote) => {
                let sent = &mut context.times.sent;
                sent.bytes += run.bytes;
                sent.written.add(context.now.saturating_sub(since));
                sent.begun.add(wrote.begin);
                sent.took.add(wrote.took);
                *found = Slot::Free;
                context.say(Say::Wrote { at, slot: to });
                route.fill(at.route, context);
            }
            Err(why) => route.fail(at.route, &why, context),
        }
    }

    /// Handles the end of the agent: it writes nothing any more.
    pub(super) fn closed(&mut self, at: At, context: &mut Context<'_>) {
        let Some(route) = self.current(at).filter(|route| route.state == State::Closing) else { return };
        route.state = State::Closed;
        route.slots.fill(Slot::Free);
        context.say(Say::Ended { at });
    }

    pub(super) fn tick(&mut self, context: &mut Context<'_>) {
        let (now, deadline) = (context.now, context.steps.does(Step::Deadline));
        for (number, route) in &mut self.routes {
            let late =
                |slot: &Slot| matches!(slot, Slot::Written { since, .. } if *since + NIXL_DEADLINE <= now);
            let is_late = match route.state {
                State::Connecting { until }
                | State::Probed { until, .. }
                | State::Measuring { until, .. } => until <= now,
                State::Used => route.slots.iter().any(late),
                State::Closing | State::Closed => false,
            };
            if is_late && deadline {
                route.fail(*number, "it took too long", context);
            }
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.routes.values().any(|route| match route.state {
            State::Used => route.slots.iter().any(|slot| matches!(slot, Slot::Written { .. })),
            State::Closing | State::Closed => false,
            _ => true,
        })
    }

    /// Returns its state, as [`Sent::shares`](super::times::Sent) counts it.
    pub(super) fn state(&self) -> usize {
        let mut copies = false;
        for slot in self.used().flat_map(|route| &route.slots) {
            match slot {
                Slot::Written { .. } => return 0,
                Slot::Filled { .. } => copies = true,
                Slot::Free => {}
            }
        }
        if copies { 1 } else { 2 }
    }

    pub(super) fn cut(&mut self, context: &mut Context<'_>) {
        self.routes.iter_mut().for_each(|(number, route)| route.close(*number, context));
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let at_rest = |route: &Route| {
            let slots = route.slots.iter().all(|slot| *slot == Slot::Free);
            matches!(route.state, State::Used | State::Closed) && slots && route.granted.is_empty()
        };
        self.routes.values().all(at_rest)
    }

    fn used(&self) -> impl Iterator<Item = &Route> {
        self.routes.values().filter(|route| route.state == State::Used)
    }

    /// Returns the number of routes over which spans go.
    pub(super) fn routes_used(&self) -> usize {
        self.used().count()
    }
}
