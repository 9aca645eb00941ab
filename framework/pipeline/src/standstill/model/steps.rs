//! The steps of a tiny pipeline without faults, each after the module of `worker` that does it.

use std::collections::{BTreeMap, BTreeSet};

use crate::item::ItemOrder;
use crate::limits::DEFAULT_MAILBOX;
use crate::pairs::Partner;
use crate::plan::{Kind, RESULTS};
use crate::worker::order::Reorder;

use super::world::{Actor, At, Call, Came, Content, Kept, Key, Lane, Message, Piece, World};
use super::{Act, Flaw, Route, Shape};

/// How soon a step happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// It happens by itself, sooner than an actor reports twice.
    Prompt,
    /// It happens by itself, after any time.
    Slow,
    /// It need not happen.
    Outside,
}

/// A step, and the state that it leads to.
pub(super) struct Step {
    pub(super) does: &'static str,
    pub(super) actor: usize,
    pub(super) pace: Pace,
    pub(super) world: World,
}

pub(super) struct Model {
    pub(super) shape: Shape,
    pub(super) flaw: Flaw,
    /// The members: stage and replica.
    pub(super) actors: Vec<(usize, u16)>,
    /// By stage: its members.
    pub(super) replicas: Vec<Vec<usize>>,
    /// By stage: the edges out of it, by branch.
    pub(super) edges: Vec<Vec<usize>>,
    /// By actor: the senders that send it an end.
    pub(super) lanes: Vec<Vec<Lane>>,
    /// By stage: the places of one sender in its mailbox.
    places: Vec<usize>,
    /// By edge: whether the end waits for the answers.
    settles_first: Vec<bool>,
    /// By stage: the reports that it makes as a fork.
    partners: Vec<Vec<Partner>>,
}

impl Model {
    pub(super) fn new(mut shape: Shape, flaw: Flaw) -> Self {
        shape.plan = shape.plan.complete();
        let plan = &shape.plan;
        let count = plan.stages.len();
        assert_eq!(count, shape.acts.len(), "a stage of the pipeline's own was added");
        let mut actors = Vec::new();
        let mut replicas = vec![Vec::new(); count];
        for (stage, here) in plan.stages.iter().enumerate() {
            for replica in 0..here.replicas as u16 {
                replicas[stage].push(actors.len());
                actors.push((stage, replica));
            }
        }
        let edges = (0..count).map(|stage| {
            let edges = plan.edges_from(stage, RESULTS);
            edges.into_iter().map(|(edge, _)| edge).collect::<Vec<_>>()
        });
        let edges: Vec<_> = edges.collect();
        let lanes = actors.iter().map(|(stage, _)| {
            let mut lanes: Vec<Lane> = Vec::new();
            for (edge, from) in plan.edges_to(*stage).filter(|(_, edge)| !edge.feedback) {
                lanes.extend(replicas[from.from.stage].iter().map(|sender| (edge, *sender)));
            }
            lanes
        });
        let lanes: Vec<_> = lanes.collect();
        let places = (0..count).map(|stage| match flaw {
            Flaw::NoPlaces => plan.stages[stage].mailbox.unwrap_or(DEFAULT_MAILBOX).max(2) as usize,
            _ => plan.mailbox(stage) as usize,
        });
        let places: Vec<_> = places.collect();
        let settles_first = plan.edges.iter().map(|edge| match flaw {
            Flaw::EndBehindAnswers => true,
            _ => plan.settles_first(edge.from.stage, edge),
        });
        let settles_first: Vec<_> = settles_first.collect();
        let partners = (0..count).map(|stage| match flaw {
            Flaw::UntoldPartners => Vec::new(),
            _ => plan.partners(stage, RESULTS),
        });
        let partners: Vec<_> = partners.collect();
        Model { shape, flaw, actors, replicas, edges, lanes, places, settles_first, partners }
    }

    pub(super) fn begin(&self) -> World {
        World {
            actors: vec![Actor::default(); self.actors.len()],
            messages: BTreeMap::new(),
            sent: BTreeMap::new(),
            stopping: false,
            signalled: false,
            deaths: self.shape.deaths,
            died: false,
            failed: false,
            sunk: Vec::new(),
            named: BTreeSet::new(),
            left_over: BTreeSet::new(),
        }
    }

    /// Returns all steps that can be next.
    pub(super) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for actor in 0..self.actors.len() {
            self.steps_of(world, actor, &mut steps);
        }
        let runs = |actor: &usize| self.is_source(*actor) && world.actors[*actor].at == At::Running;
        if let Some(actor) = (0..self.actors.len()).find(runs).filter(|_| !world.signalled) {
            let mut world = world.clone();
            (world.signalled, world.stopping) = (true, true);
            steps.push(Step { does: "hears of Ctrl-C", actor, pace: Pace::Outside, world });
        }
        steps
    }

    fn steps_of(&self, world: &World, actor: usize, steps: &mut Vec<Step>) {
        use Pace::{Outside, Prompt, Slow};
        let here = &world.actors[actor];
        let (stage, _) = self.actors[actor];
        let mut step = |does, pace, change: &dyn Fn(&mut World)| {
            let mut world = world.clone();
            change(&mut world);
            world.settle();
            steps.push(Step { does, actor, pace, world });
        };
        match here.at {
            At::Gone => return,
            At::Down => return step("begins anew", Slow, &|world| self.begin_anew(world, actor)),
            _ => {}
        }
        if world.deaths > 0 && here.at != At::Done && self.shape.mortal.contains(&stage) {
            step("dies", Outside, &|world| self.die(world, actor));
        }
        // `Branch`: a result goes when there is room, or is named where nobody is left.
        if let Some(piece) = here.pending.front() {
            if self.is_lost(world, piece) {
                step("names", Prompt, &|world| {
                    let piece = world.actors[actor].pending.pop_front();
                    world.named.extend(piece.iter().flat_map(|piece| &piece.ids));
                });
            } else if piece.content == Content::Gap || self.has_room(world, actor, piece.edge) {
                for to in self.takers(world, actor, piece) {
                    step("sends", Prompt, &|world| {
                        if let Some(piece) = world.actors[actor].pending.pop_front() {
                            self.post(world, actor, piece, to);
                        }
                    });
                }
            }
        }
        for (at, piece) in here.beside.iter().enumerate() {
            if self.is_lost(world, piece) {
                step("names", Prompt, &|world| {
                    let piece = world.actors[actor].beside.remove(at);
                    world.named.extend(piece.ids);
                });
                continue;
            }
            for to in self.takers(world, actor, piece) {
                step("sends again", Prompt, &|world| {
                    let piece = world.actors[actor].beside.remove(at);
                    self.post(world, actor, piece, to);
                });
            }
        }
        if self.is_source(actor) {
            if here.at == At::Running && here.pending.is_empty() {
                if world.stopping || here.made == self.shape.items {
                    step("has made all", Prompt, &|world| self.begin_end(world, actor));
                } else {
                    step("makes an item", Prompt, &|world| {
                        let ids = vec![world.actors[actor].made];
                        world.actors[actor].made += 1;
                        self.emit(world, actor, Piece { ids, ..Piece::default() });
                    });
                }
            }
        } else if here.pending.is_empty() {
            // `Core`: an actor takes no message before the results of the last one are accepted.
            for key in world.mailbox(actor) {
                step("takes", Prompt, &|world| self.take(world, actor, key));
            }
            for lane in self.untold(world, actor) {
                step("hears of a death", Prompt, &|world| {
                    world.actors[actor].over.insert(lane);
                    self.check_ends(world, actor);
                });
            }
            if self.may_wake(world, actor) {
                step("has waited long enough", Slow, &|world| {
                    self.pack(world, actor, None, Vec::new());
                });
            }
        }
        if self.may_end(world, actor) {
            step("sends its end", Prompt, &|world| {
                let Some((edge, to)) = world.actors[actor].unsaid.pop_front() else { return };
                if world.actors[to].at != At::Gone {
                    let end = Piece { content: Content::End, edge, to: Some(to), ..Piece::default() };
                    self.post(world, actor, end, to);
                }
                self.has_ended(world, actor);
            });
        }
        let answered = self.edges[stage].iter().all(|edge| world.unanswered(actor, *edge).next().is_none());
        if here.at == At::Ended && here.beside.is_empty() && answered {
            // `Core::end`: only now are the ends of its senders answered.
            step("is done", Prompt, &|world| {
                let here = &mut world.actors[actor];
                here.at = At::Done;
                here.ends.clear();
            });
        }
        for partner in &self.partners[stage] {
            for zip in &self.replicas[partner.stage] {
                if let Some(at) = self.alone(world, actor, partner, *zip) {
                    step("tells of a partner that does not come", Prompt, &|world| {
                        let half = world.actors[*zip].kept.remove(at);
                        world.left_over.extend(half.piece.ids);
                    });
                }
            }
        }
    }

    pub(super) fn is_source(&self, actor: usize) -> bool {
        self.shape.plan.stages[self.actors[actor].0].kind == Kind::Source
    }

    pub(super) fn resends(&self) -> bool {
        self.shape.plan.at_least_once.is_some()
    }

    /// Whether a stage with a time at which it goes on keeps items.
    pub(super) fn may_wake(&self, world: &World, actor: usize) -> bool {
        let (stage, here) = (self.actors[actor].0, &world.actors[actor]);
        self.shape.plan.stages[stage].times_out && here.at == At::Running && !here.kept.is_empty()
    }

    fn receivers(&self, piece: &Piece) -> Vec<usize> {
        match piece.to {
            Some(to) => vec![to],
            None => self.replicas[self.shape.plan.edges[piece.edge].to].clone(),
        }
    }

    /// Whether no receiver is left.
    fn is_lost(&self, world: &World, piece: &Piece) -> bool {
        self.receivers(piece).into_iter().all(|to| world.actors[to].at == At::Gone)
    }

    /// Returns the receivers that can take something now. A sender may choose any of them.
    fn takers(&self, world: &World, actor: usize, piece: &Piece) -> Vec<usize> {
        let mut takers = self.receivers(piece);
        takers.retain(|to| world.actors[*to].is_alive() && self.has_place(world, actor, *to));
        takers
    }

    /// Whether a mailbox has a place for one more message of a sender (MBX-2).
    fn has_place(&self, world: &World, from: usize, to: usize) -> bool {
        let of_it = |(key, message): &(&Key, &Message)| key.1 == from && message.to == to && !message.orphan;
        world.messages.iter().filter(of_it).count() < self.places[self.actors[to].0]
    }

    /// As `Branch::has_room`.
    fn has_room(&self, world: &World, actor: usize, edge: usize) -> bool {
        let (plan, here) = (&self.shape.plan, &world.actors[actor]);
        let (to, feedback) = (plan.edges[edge].to, plan.edges[edge].feedback);
        let is_source = self.is_source(actor);
        let counts = |piece: &&Piece| piece.edge == edge && piece.content != Content::End;
        let again = here.beside.iter().filter(counts).count();
        let under_way: Vec<&Piece> = world.unanswered(actor, edge).filter(counts).collect();
        let count = under_way.len() + again;
        if count == 0 || (is_source && self.resends() && world.stopping) {
            return true;
        }
        let window = plan.stages[to].window.filter(|_| !feedback);
        let bound = window.or(plan.at_least_once.filter(|_| is_source));
        let ahead = plan.loses_order(to).then(|| plan.ahead(to));
        let oldest = under_way.iter().filter_map(|piece| Some(piece.order?.number)).min();
        let next = here.numbers.get(&edge).copied().unwrap_or(0);
        let in_order = match ahead {
            None => true,
            Some(ahead) if self.resends() => count < ahead as usize,
            Some(ahead) => oldest.is_none_or(|oldest| next - oldest < u64::from(ahead)),
        };
        in_order && bound.is_none_or(|bound| count < bound as usize)
    }

    /// Puts a message into a mailbox.
    pub(super) fn post(&self, world: &mut World, actor: usize, mut piece: Piece, to: usize) {
        let plan = &self.shape.plan;
        let edge = plan.edges[piece.edge];
        let (from, receiver) = (&plan.stages[edge.from.stage], &plan.stages[edge.to]);
        if receiver.depth == 0 {
            piece.root = None;
        }
        if piece.content == Content::Item && piece.order.is_none() && plan.loses_order(edge.to) {
            let here = &mut world.actors[actor];
            let number = here.numbers.entry(piece.edge).or_default();
            let lane = (piece.edge * self.actors.len() + actor) as u32;
            piece.order = Some(ItemOrder { lane, life: here.life.into(), number: *number, last: true });
            *number += 1;
        }
        // `Branch::follow`: outside of a chain, what it came from is answered when it is accepted.
        if !(self.resends() || (from.depth > 0 && receiver.depth > 0)) {
            piece.guards.clear();
        }
        let sent = world.sent.entry((piece.edge, actor)).or_default();
        let key = (piece.edge, actor, *sent);
        *sent += 1;
        world.messages.insert(key, Message { piece, to, taken: false, orphan: false });
    }

    /// Takes a message from the mailbox.
    fn take(&self, world: &mut World, actor: usize, key: Key) {
        let Some(message) = world.messages.get_mut(&key) else { return };
        message.taken = true;
        let mut piece = Piece { guards: vec![key], ..message.piece.clone() };
        let (plan, stage) = (&self.shape.plan, self.actors[actor].0);
        let (at, feedback) = (world.actors[actor].at, plan.edges[piece.edge].feedback);
        let (restores, order) =
            (self.restores(world, actor), piece.order.filter(|_| plan.restores_order(stage)));
        match (piece.content, order) {
            (Content::End, _) => {
                if at == At::Running {
                    let here = &mut world.actors[actor];
                    here.over.insert((key.0, key.1));
                    here.ends.push(key);
                    self.check_ends(world, actor);
                }
                return;
            }
            // `Reorder`: each message for its place in the order.
            (content, Some(order)) if restores => {
                piece.order = None;
                let came = if content == Content::Gap { Came::Nothing } else { Came::Early(piece) };
                world.actors[actor].order.push(Call::Put(order, came));
                return self.in_order(world, actor, false);
            }
            (Content::Gap, None) => return self.close(world, actor, piece.order, piece.guards),
            (Content::Gap, Some(_)) => return,
            (Content::Item, Some(_)) => piece.order = None,
            (Content::Item, None) => {}
        }
        // `Rounds`: an item that comes around is answered at once, and holds the place of its first round.
        if plan.stages[stage].window.is_some() {
            if feedback {
                piece.guards =
                    piece.root.filter(|root| world.messages.contains_key(root)).into_iter().collect();
            } else {
                piece.root = Some(key);
            }
        }
        self.process(world, actor, piece);
        if at != At::Running {
            // It came behind the end, after a death.
            self.finish(world, actor);
        }
    }

    /// Whether an actor restores an order: a later life does not know what its earlier ones have passed on.
    pub(super) fn restores(&self, world: &World, actor: usize) -> bool {
        let here = &world.actors[actor];
        self.shape.plan.restores_order(self.actors[actor].0) && here.life == 0 && here.at == At::Running
    }

    /// Handles the items whose turn has come, or all if the order closes.
    pub(super) fn in_order(&self, world: &mut World, actor: usize, closes: bool) {
        let calls = &mut world.actors[actor].order;
        // The state of an order in which nothing was given up does not depend on who was first.
        if !calls.contains(&Call::Skip) {
            calls.sort_by_key(|call| match call {
                Call::Put(order, _) => (order.lane, order.life, order.number, order.last),
                Call::Skip => (u32::MAX, 0, 0, false),
            });
        }
        let mut order = Reorder::new();
        for (at, call) in calls.iter().enumerate() {
            match call {
                Call::Put(place, came) => order.put(Some(*place), (*came != Came::Nothing).then_some(at)),
                Call::Skip => order.skip(),
            }
        }
        if closes {
            order.close();
        }
        while let Some(at) = order.take() {
            let Call::Put(_, came) = &mut world.actors[actor].order[at] else { continue };
            if let Came::Early(piece) = std::mem::replace(came, Came::Handled) {
                self.process(world, actor, piece);
            }
        }
    }

    /// Calls a stage with an item.
    fn process(&self, world: &mut World, actor: usize, piece: Piece) {
        let act = self.shape.acts[self.actors[actor].0];
        if world.actors[actor].failed {
            world.named.extend(&piece.ids);
            return self.close(world, actor, piece.order, piece.guards);
        }
        match act {
            Act::Source => {}
            Act::Sink => world.sunk.extend(&piece.ids),
            Act::Makes(makes) => {
                let count = makes(piece.ids[0]);
                for result in 1..=count {
                    let last = |order: ItemOrder| ItemOrder { last: order.last && result == count, ..order };
                    self.emit(world, actor, Piece { order: piece.order.map(last), ..piece.clone() });
                }
                if count == 0 {
                    self.close(world, actor, piece.order, piece.guards);
                }
            }
            Act::Fails(on, _) if piece.ids.contains(&on) => self.fail(world, actor, piece),
            Act::Batch(most) | Act::Timed(most) | Act::Hold(most) | Act::Fails(_, most) => {
                let (order, guards) = (piece.order, piece.guards.clone());
                self.keep(world, actor, piece);
                if world.actors[actor].kept.len() >= most {
                    self.pack(world, actor, order, guards);
                } else {
                    self.close(world, actor, order, guards);
                }
            }
            Act::Window(most) => {
                self.keep(world, actor, piece.clone());
                if world.actors[actor].kept.len() == most {
                    self.emit(world, actor, piece);
                    world.actors[actor].kept.remove(0);
                } else {
                    self.close(world, actor, piece.order, piece.guards);
                }
            }
            Act::Zip => self.pair(world, actor, piece),
        }
    }

    /// `Out::hold`: keeps an item, unanswered where its sender must not forget it.
    fn keep(&self, world: &mut World, actor: usize, mut piece: Piece) {
        let (plan, stage) = (&self.shape.plan, self.actors[actor].0);
        let left =
            plan.stages[stage].pairs.is_some_and(|pairs| pairs.sides[0] == plan.edges[piece.edge].from.stage);
        if !(plan.holds(stage) || self.resends() || plan.stages[stage].depth > 0) {
            piece.guards.clear();
        }
        world.actors[actor].kept.push(Kept { piece, left });
    }

    /// `Out::emit_for`: emits the items that a stage keeps. `guards` are those of the item of the call.
    fn pack(&self, world: &mut World, actor: usize, order: Option<ItemOrder>, guards: Vec<Key>) {
        let kept = std::mem::take(&mut world.actors[actor].kept);
        let answered = |piece: Piece| match piece.guards.is_empty() {
            true => Piece { guards: guards.clone(), order, ..piece },
            false => Piece { order, ..piece },
        };
        let parts = kept.into_iter().map(|kept| kept.piece);
        if matches!(self.shape.acts[self.actors[actor].0], Act::Hold(_)) {
            parts.map(answered).for_each(|part| self.emit(world, actor, part));
            return;
        }
        let whole = parts.reduce(|mut whole, part| {
            whole.ids.extend(part.ids);
            whole.guards.extend(part.guards);
            whole
        });
        if let Some(whole) = whole.map(answered) {
            self.emit(world, actor, whole);
        }
    }

    fn pair(&self, world: &mut World, actor: usize, mut piece: Piece) {
        self.keep(world, actor, piece.clone());
        let kept = &mut world.actors[actor].kept;
        let Some(half) = kept.pop() else { return };
        let is_partner = |other: &Kept| other.left != half.left && other.piece.ids[0] == half.piece.ids[0];
        match kept.iter().position(is_partner) {
            Some(at) => {
                piece.guards.extend(kept.remove(at).piece.guards);
                self.emit(world, actor, piece);
            }
            None => kept.push(half),
        }
    }

    /// Puts a result on its way.
    fn emit(&self, world: &mut World, actor: usize, mut piece: Piece) {
        let stage = self.actors[actor].0;
        let edges = &self.edges[stage];
        let chosen = match self.shape.routes[stage] {
            Route::All => edges.clone(),
            Route::ByNumber => vec![edges[usize::from(piece.ids[0]) % edges.len()]],
            Route::Rounds(most) => {
                piece.round += 1;
                vec![edges[usize::from(piece.round >= most)]]
            }
        };
        let pending = &mut world.actors[actor].pending;
        pending.extend(chosen.into_iter().map(|edge| Piece { edge, ..piece.clone() }));
    }

    /// `Core::nothing_of`: tells the restorer of an order that nothing comes with this place.
    pub(super) fn close(&self, world: &mut World, actor: usize, order: Option<ItemOrder>, guards: Vec<Key>) {
        let Some(order) = order.filter(|order| order.last && self.flaw != Flaw::UntoldGaps) else { return };
        let gap = Piece { content: Content::Gap, order: Some(order), guards, ..Piece::default() };
        let edges = &self.edges[self.actors[actor].0];
        world.actors[actor].pending.extend(edges.iter().map(|edge| Piece { edge: *edge, ..gap.clone() }));
    }

    /// `Core::ended`: finishes when the ends of all senders have come.
    pub(super) fn check_ends(&self, world: &mut World, actor: usize) {
        let here = &world.actors[actor];
        if here.at != At::Running || !self.lanes[actor].iter().all(|lane| here.over.contains(lane)) {
            return;
        }
        self.in_order(world, actor, true);
        world.actors[actor].order.clear();
        self.finish(world, actor);
        self.begin_end(world, actor);
    }

    fn finish(&self, world: &mut World, actor: usize) {
        if world.actors[actor].failed {
            return;
        }
        match self.shape.acts[self.actors[actor].0] {
            Act::Zip => {
                let halves = std::mem::take(&mut world.actors[actor].kept);
                world.left_over.extend(halves.iter().flat_map(|half| &half.piece.ids));
            }
            Act::Window(_) => world.actors[actor].kept.clear(),
            _ => self.pack(world, actor, None, Vec::new()),
        }
    }

    fn begin_end(&self, world: &mut World, actor: usize) {
        let plan = &self.shape.plan;
        let edges = self.edges[self.actors[actor].0].iter().filter(|edge| !plan.edges[**edge].feedback);
        let all =
            edges.flat_map(|edge| self.replicas[plan.edges[*edge].to].iter().map(move |to| (*edge, *to)));
        world.actors[actor].unsaid = all.collect();
        self.has_ended(world, actor);
    }

    fn has_ended(&self, world: &mut World, actor: usize) {
        let here = &mut world.actors[actor];
        here.at = if here.unsaid.is_empty() { At::Ended } else { At::Ending };
    }

    /// `Outlet::say_end`: whether the next end can go.
    fn may_end(&self, world: &World, actor: usize) -> bool {
        let here = &world.actors[actor];
        let Some((_, to)) = here.unsaid.front().copied().filter(|_| here.pending.is_empty()) else {
            return false;
        };
        let waits = |edge: &usize| {
            let again = here.beside.iter().filter(|piece| piece.edge == *edge);
            let mut under_way = world.unanswered(actor, *edge).chain(again);
            self.settles_first[*edge] && under_way.any(|piece| piece.content != Content::End)
        };
        let receiver = &world.actors[to];
        receiver.at == At::Gone
            || (receiver.is_alive()
                && self.has_place(world, actor, to)
                && !self.edges[self.actors[actor].0].iter().any(waits))
    }
}
