//! The receiving end: arenas into which the other host writes, and the spans that wait for their slots.

use std::collections::VecDeque;
use std::time::Duration;

use super::Offer;
use super::Say;
use super::lane::{Context, Do, Lie};
use super::steps::Step;
use super::wire::At;
use crate::frame::Run;
use crate::ids::Seq;
use crate::limits::{MAX_NIXL_BREAKS, MAX_NIXL_ROUTES, MAX_NIXL_WANTS};

#[derive(Debug, Default)]
pub(super) struct Reader {
    /// By route number.
    routes: Vec<Route>,
    /// The number of spans whose device is not known yet.
    locating: usize,
}

#[derive(Debug)]
struct Route {
    /// The sender's device, and this host's.
    from: u8,
    to: u8,
    epoch: u32,
    state: State,
    slots: Vec<Slot>,
    waiting: VecDeque<Waiting>,
    breaks: u8,
    /// Bytes of the present gRPC measurement that have come.
    ballast: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no arena.
    Idle,
    /// The arena is being made.
    Making,
    /// The arena was offered, and the other side has not reported a probe.
    Offered,
    /// The probe is being checked.
    Checking,
    /// The probe was checked; gRPC is being measured.
    Measured,
    /// Slots are granted.
    Used,
    /// The route is not used again before both agents have ended.
    Closing { agent: bool, writer: bool, off: bool },
    /// The route is not used over this connection.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// Granted at this time.
    Granted(Run, Duration),
    /// It is being copied out, since this time.
    Copied(Duration),
}

/// A span whose next run waits for a slot.
#[derive(Debug)]
struct Waiting {
    post: Seq,
    span: u16,
    next: u64,
    bytes: u64,
    since: Duration,
}

impl Route {
    fn at(&self, number: usize) -> At {
        At { route: number as u8, epoch: self.epoch } // MAX_NIXL_ROUTES
    }

    /// Returns whether some slot is being copied out.
    fn is_copied(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Copied(_)))
    }

    fn can_begin(&self) -> bool {
        self.state == State::Idle && self.breaks < MAX_NIXL_BREAKS
    }

    /// Stops using the arena.
    fn close(&mut self, number: usize, off: bool, context: &mut Context<'_>) {
        if matches!(self.state, State::Idle | State::Off | State::Closing { .. }) {
            return;
        }
        // Granted slots are not waited for, because nobody has reported a write; copies are.
        for slot in self.slots.iter_mut().filter(|slot| matches!(slot, Slot::Granted(..))) {
            *slot = Slot::Free;
        }
        self.waiting.clear();
        self.state = State::Closing { agent: false, writer: false, off };
        context.dos.push(Do::CloseIn { at: self.at(number) });
    }

    /// Frees the memory when it may be reused. HOST-11: that is when its agent has ended, the writer's has
    /// too, and no copy of this host uses it.
    fn settle(&mut self, number: usize, context: &mut Context<'_>) {
        let State::Closing { agent, writer, off } = self.state else { return };
        let closed = agent || !context.steps.does(Step::CloseFirst);
        let ended = writer || !context.steps.does(Step::WaitForWriter);
        if closed && ended && !self.is_copied() {
            self.state = if off { State::Off } else { State::Idle };
            context.dos.push(Do::Release { at: self.at(number) });
        }
    }

    fn grant(&mut self, number: usize, context: &mut Context<'_>) {
        let at = self.at(number);
        while self.state == State::Used
            && let Some(slot) = self.slots.iter().position(|slot| *slot == Slot::Free)
            && let Some(front) = self.waiting.front_mut()
        {
            // The span's message may be aborted, or complete.
            if context.session.arriving(front.post, front.span).is_none() {
                self.waiting.pop_front();
                continue;
            }
            let bytes = (front.bytes - front.next).min(context.sizes.slot);
            let run = Run { post: front.post, span: front.span, offset: front.next, bytes };
            if front.next == 0 {
                context.times.came.queued.add(context.now.saturating_sub(front.since));
            }
            front.next += bytes;
            if front.next == front.bytes {
                self.waiting.pop_front();
            }
            self.slots[slot] = Slot::Granted(run, context.now);
            context.say(Say::Grant { at, slot: slot as u8, run }); // of NIXL_SLOTS
        }
    }
}

impl Reader {
    /// Returns the route of an arena, if that is of the present epoch.
    fn current(&mut self, at: At) -> Result<Option<(usize, &mut Route)>, Lie> {
        let number = usize::from(at.route);
        match self.routes.get_mut(number) {
            Some(route) if route.epoch == at.epoch => Ok(Some((number, route))),
            Some(route) if route.epoch > at.epoch => Ok(None),
            _ => Err(Lie::Route { at, what: "something" }),
        }
    }

    /// Handles the list of arenas that the other side may still write.
    pub(super) fn begin(&mut self, open: &[At], context: &mut Context<'_>) -> Result<(), Lie> {
        for number in 0..self.routes.len() {
            let route = &mut self.routes[number];
            let at = route.at(number);
            if let State::Closing { writer, .. } = &mut route.state {
                *writer |= !open.contains(&at);
            }
            route.settle(number, context);
        }
        Ok(())
    }

    pub(super) fn want(
        &mut self,
        post: Seq,
        span: u16,
        from: u8,
        context: &mut Context<'_>,
    ) -> Result<(), Lie> {
        let waiting: usize = self.routes.iter().map(|route| route.waiting.len()).sum();
        if self.locating + waiting >= MAX_NIXL_WANTS {
            return Err(Lie::Wants { most: MAX_NIXL_WANTS });
        }
        let Some(link) = context.link else { return Ok(()) };
        self.locating += 1;
        context.dos.push(Do::Locate { link, post, span, from, asked: context.now });
        Ok(())
    }

    pub(super) fn located(
        &mut self,
        post: Seq,
        span: u16,
        from: u8,
        to: Option<u8>,
        context: &mut Context<'_>,
    ) {
        self.locating = self.locating.saturating_sub(1);
        let Some(bytes) = context.session.arriving(post, span) else {
            // The message is complete already, or was aborted: nobody waits for an answer.
            return;
        };
        let found = to.and_then(|to| self.route(from, to));
        let Some(number) = found else {
            return context.say(Say::Narrow { post, span, for_good: false });
        };
        let route = &mut self.routes[number];
        if route.state == State::Used {
            route.waiting.push_back(Waiting { post, span, next: 0, bytes, since: context.now });
            return route.grant(number, context);
        }
        if route.can_begin() {
            route.epoch += 1;
            route.state = State::Making;
            route.ballast = 0;
            route.slots = vec![Slot::Free; usize::from(context.sizes.slots)];
            context.dos.push(Do::Make { at: route.at(number), to: route.to });
        }
        let over = |route: &Route| {
            route.state == State::Off || (route.state == State::Idle && route.breaks >= MAX_NIXL_BREAKS)
        };
        let for_good = self.routes.iter().filter(|route| route.from == from).all(over);
        context.say(Say::Narrow { post, span, for_good });
    }

    /// Returns the route between two devices, and makes it if there is room.
    fn route(&mut self, from: u8, to: u8) -> Option<usize> {
        let known = self.routes.iter().position(|route| (route.from, route.to) == (from, to));
        known.or_else(|| {
            let room = self.routes.len() < usize::from(MAX_NIXL_ROUTES);
            room.then(|| {
                let state = State::Idle;
                let (slots, waiting) = (Vec::new(), VecDeque::new());
                self.routes.push(Route { from, to, epoch: 0, state, slots, waiting, breaks: 0, ballast: 0 });
                self.routes.len() - 1
            })
        })
    }

    /// Handles a new arena, or the word that it cannot be made.
    pub(super) fn made(&mut self, at: At, made: Result<Offer, String>, context: &mut Context<'_>) {
        let Ok(Some((number, route))) = self.current(at) else { return };
        if route.state != State::Making {
            return;
        }
        match made {
            Ok(offer) => {
                route.state = State::Offered;
                let device = route.from;
                context.say(Say::Offer { at, device, offer });
            }
            Err(why) => {
                *context.fallen_back += 1;
                tracing::warn!(
                    target: "tensorpost::hosts",
                    "tensors from {} go by gRPC: there is no arena for NIXL here: {why}", context.session.peer()
                );
                route.breaks += 1;
                route.close(number, true, context);
                // The other side was not told of it.
                if let State::Closing { writer, .. } = &mut route.state {
                    *writer = true;
                }
            }
        }
    }

    pub(super) fn probed(&mut self, at: At, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some((_, route)) = self.current(at)? else { return Ok(()) };
        if route.state != State::Offered {
            return Lie::of(at, "that it was probed");
        }
        route.state = State::Checking;
        context.dos.push(Do::Check { at });
        Ok(())
    }

    pub(super) fn checked(&mut self, at: At, sound: bool, context: &mut Context<'_>) {
        let Ok(Some((_, route))) = self.current(at) else { return };
        if route.state == State::Checking {
            // If the bytes are not there, the writer breaks the route.
            route.state = State::Measured;
            context.say(Say::Sound { at, sound });
        }
    }

    pub(super) fn ballast(&mut self, at: At, bytes: u32, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some((_, route)) = self.current(at)? else { return Ok(()) };
        route.ballast += u64::from(bytes);
        if route.state != State::Measured || route.ballast > context.sizes.slot {
            return Lie::of(at, "more than a probe of gRPC");
        }
        if route.ballast == context.sizes.slot {
            context.say(Say::Had { at });
        }
        Ok(())
    }

    pub(super) fn chosen(&mut self, at: At, chosen: bool, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some((number, route)) = self.current(at)? else { return Ok(()) };
        if route.state != State::Measured || route.ballast != context.sizes.slot {
            return Lie::of(at, "that it was chosen");
        }
        if chosen {
            route.state = State::Used;
        } else {
            route.close(number, true, context);
        }
        Ok(())
    }

    pub(super) fn wrote(&mut self, at: At, slot: u8, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some(link) = context.link else { return Ok(()) };
        let Some((number, route)) = self.current(at)? else { return Ok(()) };
        let Some(Slot::Granted(run, since)) = route.slots.get(usize::from(slot)).copied() else {
            return Lie::of(at, "that it wrote a slot which was not granted");
        };
        context.times.came.granted.add(context.now.saturating_sub(since));
        // A span that arrived in another way, or was aborted, does not need the run any more.
        if context.session.claim_run(link, &run) {
            let copied = Slot::Copied(context.now);
            route.slots[usize::from(slot)] =
                if context.steps.does(Step::FreeWhenCopied) { copied } else { Slot::Free };
            context.dos.push(Do::Import { at, slot, run });
        } else {
            route.slots[usize::from(slot)] = Slot::Free;
        }
        route.grant(number, context);
        Ok(())
    }

    pub(super) fn gone(&mut self, at: At, slot: u8, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some((number, route)) = self.current(at)? else { return Ok(()) };
        let Some(Slot::Granted(run, _)) = route.slots.get(usize::from(slot)).copied() else {
            return Lie::of(at, "that it does not write a slot which was not granted");
        };
        route.slots[usize::from(slot)] = Slot::Free;
        route.waiting.retain(|waiting| (waiting.post, waiting.span) != (run.post, run.span));
        route.grant(number, context);
        Ok(())
    }

    /// Handles the word that the writer has given a write up, which may still arrive.
    pub(super) fn broken(&mut self, at: At, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some((number, route)) = self.current(at)? else { return Ok(()) };
        if matches!(route.state, State::Idle | State::Making | State::Off) {
            return Lie::of(at, "that it broke");
        }
        route.breaks = route.breaks.saturating_add(1);
        route.close(number, false, context);
        Ok(())
    }

    /// Handles the word that the writer's agent has ended.
    pub(super) fn ended(&mut self, at: At, context: &mut Context<'_>) -> Result<(), Lie> {
        let Some((number, route)) = self.current(at)? else { return Ok(()) };
        let State::Closing { writer, .. } = &mut route.state else {
            return Lie::of(at, "that it has ended");
        };
        *writer = true;
        route.settle(number, context);
        Ok(())
    }

    /// Handles the end of an arena's agent.
    pub(super) fn closed(&mut self, at: At, context: &mut Context<'_>) {
        let Ok(Some((number, route))) = self.current(at) else { return };
        if let State::Closing { agent, .. } = &mut route.state {
            *agent = true;
        }
        route.settle(number, context);
    }

    /// Handles the end of a copy out of a slot.
    pub(super) fn freed(&mut self, at: At, slot: u8, context: &mut Context<'_>) {
        let Ok(Some((number, route))) = self.current(at) else { return };
        if let Some(slot) = route.slots.get_mut(usize::from(slot))
            && let Slot::Copied(since) = *slot
        {
            context.times.came.copied.add(context.now.saturating_sub(since));
            *slot = Slot::Free;
        }
        route.grant(number, context);
        route.settle(number, context);
    }

    /// Returns its state, as [`Came::shares`](super::times::Came) counts it.
    pub(super) fn state(&self) -> usize {
        let mut copies = false;
        for slot in self.routes.iter().flat_map(|route| &route.slots) {
            match slot {
                Slot::Granted(..) => return 0,
                Slot::Copied(_) => copies = true,
                Slot::Free => {}
            }
        }
        match (copies, self.locating) {
            (true, _) => 1,
            (false, 1..) => 2,
            (false, 0) => 3,
        }
    }

    pub(super) fn cut(&mut self, context: &mut Context<'_>) {
        self.locating = 0;
        for (number, route) in self.routes.iter_mut().enumerate() {
            route.close(number, false, context);
            match &mut route.state {
                State::Closing { off, .. } => *off = false,
                state @ State::Off => *state = State::Idle,
                _ => {}
            }
        }
    }

    /// Ends with the session: the other side's writer is not waited for.
    pub(super) fn end(&mut self, context: &mut Context<'_>) {
        for (number, route) in self.routes.iter_mut().enumerate() {
            route.breaks = MAX_NIXL_BREAKS;
            if let State::Closing { writer, .. } = &mut route.state {
                *writer = true;
            }
            route.settle(number, context);
        }
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let at_rest = |route: &Route| {
            let slots = route.slots.iter().all(|slot| *slot == Slot::Free);
            let state = matches!(route.state, State::Idle | State::Used | State::Off);
            slots && state && route.waiting.is_empty()
        };
        self.locating == 0 && self.routes.iter().all(at_rest)
    }
}
