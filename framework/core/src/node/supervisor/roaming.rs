//! Actors that go on on another host when theirs is gone: where each lives, and its next lives.
//!
//! A program starts an actor on another host with a policy that allows it
//! ([`Restart::on_other_hosts`](crate::node::Restart)). The host of that program is the actor's *home*: it
//! has given it its id and its names, keeps what it is made of, and knows on which host it lives. A life is
//! started by that host's starter and supervised there, as any actor that is started from elsewhere; it has
//! the id from its home (a *guest*, `node/foreign/homes.rs`). When the host is gone, the home picks the one
//! with the fewest actors and has it start the next life; that may be the home itself, where it stays then.
//! So nothing has to be agreed on by several hosts: the home is lost only together with its actors, because
//! the hosts on which they live end what was started for it.
//!
//! An address has the id alone, and processes of all hosts ask their node for one that roams; other nodes ask
//! the home by their gateways (`gateway/roaming.rs`). So addresses stay valid, and a name, which is in the
//! registry of the home, does not move at all.
//!
//! **Invariants.** HOST-10: a next life is asked for only when the last one is over for certain: its host was
//! lost by the head's verdict, or has left, with its actors stopped; or it has answered that it did not start
//! it. Where it was asked and nobody knows what became of that, the actor lives there until the host is gone.
//! Where a host was given up for another reason, so is the actor. WIRE-1: of an actor that roams the host is
//! believed that it lives on. MBX-2: so many roam, and so many lives are begun at a time.
//!
//! **Threads.** A life that begins has one, because it waits for another host. **On a shutdown** of this host
//! no life begins. **On the end** of its gateway all live on, and the next is told where
//! (`node/foreign/next_gateway.rs`); where none follows they are out of reach. A start that is under way as
//! the gateway of either host ends is asked for again of the same host, which begins a life once
//! (`node/elsewhere/guests.rs`).

mod life;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::ids::ActorId;
use crate::limits::MAX_GONE_TOLD;
use crate::node::elsewhere::{NextLife, Roams, next_life};
use crate::node::group::Group;
use crate::node::limits::{MAX_MOVES, MAX_ROAMING};
use crate::observe::log::Severity;
use crate::transport::hosts::Gone;
use crate::transport::lifecycle::{EndReason, Lifecycle};

use self::life::{Follows, Life};
use super::hosts::HostsCommand;
use super::run::State;
use super::{Closed, Command, Reply, StartError, Supervisor};

/// Actors that roam, whose home is this host, but for those that live here.
#[derive(Default)]
pub(super) struct Roaming {
    roamers: HashMap<ActorId, Roamer>,
    /// Lives that are being begun.
    beginning: usize,
    /// Hosts that are not of the node any more. No number is given twice.
    gone: HashMap<u16, (Gone, String)>,
}

struct Roamer {
    made_of: Arc<Roams>,
    life: Life,
    /// Set where its group was given up: no other life follows.
    given_up: Option<String>,
}

impl Roaming {
    /// Whether an actor of this group roams.
    pub(super) fn has_of(&self, group: &Group) -> bool {
        self.roamers.values().any(|roamer| roamer.made_of.group.as_ref() == Some(group))
    }

    /// Whether a life of one is being begun.
    pub(super) fn is_beginning_one_of(&self, group: &Group) -> bool {
        let mut all = self.roamers.values();
        all.any(|roamer| roamer.life.is_beginning() && roamer.made_of.group.as_ref() == Some(group))
    }
}

/// What is asked of the supervisor about them.
pub(super) enum RoamingCommand {
    /// An id for one that is about to be started.
    Reserve(Reply<Result<ActorId, StartError>>),
    /// Its first life has begun on this host.
    Began(ActorId, u16, Box<Roams>),
    /// It has not.
    Forget(ActorId),
    /// What became of another life.
    Next(ActorId, NextLife),
}

impl Supervisor {
    fn roaming(&self, command: RoamingCommand) {
        // After the node's end nobody comes back.
        let _ = self.shared.push(Command::Hosts(HostsCommand::Roaming(command)));
    }

    /// Makes an id for an actor that is to be started on another host, and may go on on a third.
    pub(in crate::node) fn reserve_roaming(&self) -> Result<ActorId, StartError> {
        let reserve = |reply| Command::Hosts(HostsCommand::Roaming(RoamingCommand::Reserve(reply)));
        self.shared.ask(reserve)?
    }

    /// The first life of an actor that roams has begun.
    pub(in crate::node) fn roams(&self, actor: ActorId, host: u16, made_of: Roams) {
        self.roaming(RoamingCommand::Began(actor, host, Box::new(made_of)));
    }

    /// It could not be started.
    pub(in crate::node) fn forget_roaming(&self, actor: ActorId) {
        self.roaming(RoamingCommand::Forget(actor));
    }
}

impl State {
    pub(super) fn roaming_command(&mut self, command: RoamingCommand) {
        match command {
            RoamingCommand::Reserve(reply) => {
                let reserved = match (&self.stopping, self.broker.homes()) {
                    (Some(_), _) => Err(Closed::ShuttingDown.into()),
                    (None, MAX_ROAMING..) => Err(StartError::TooManyRoam),
                    (None, _) => Ok(self.broker.roaming_actor()),
                };
                let _ = reply.try_send(reserved);
            }
            RoamingCommand::Began(actor, host, made_of) => {
                let life = Life::first(made_of.restart, host);
                let roamer = Roamer { made_of: Arc::new(*made_of), life, given_up: None };
                self.roaming.roamers.insert(actor, roamer);
                self.lives_on(actor, host);
            }
            RoamingCommand::Forget(actor) => self.end_roamer(actor, None),
            RoamingCommand::Next(actor, next) => self.life_began(actor, next),
        }
    }

    /// An actor that roams lives on this host from now on; it may be gone by now.
    fn lives_on(&mut self, actor: ActorId, host: u16) {
        if let Some((how, why)) = self.roaming.gone.get(&host).cloned() {
            return self.life_lost(actor, host, how, why);
        }
        let mut told = Vec::new();
        self.broker.lives_on(actor, Some(host), &mut told);
        self.deliver(told);
    }

    /// A host is not of the node any more, and what lived there goes on elsewhere.
    pub(super) fn roamers_lost(&mut self, host: u16, how: Gone, why: String) {
        let there = self.roaming.roamers.iter().filter(|(_, roamer)| roamer.life.is_on(host));
        let mut there: Vec<_> = there.map(|(actor, _)| *actor).collect();
        there.sort();
        self.roaming.gone.insert(host, (how, why.clone()));
        there.into_iter().for_each(|actor| self.life_lost(actor, host, how, why.clone()));
    }

    fn life_lost(&mut self, actor: ActorId, host: u16, how: Gone, why: String) {
        if self.stopping.is_some() {
            return self.end_roamer(actor, Some(EndReason::OutOfReach(why)));
        }
        let Some(roamer) = self.roaming.roamers.get_mut(&actor) else { return };
        let follows = roamer.life.host_gone(host, how, why, Instant::now());
        self.follows(actor, follows);
    }

    fn follows(&mut self, actor: ActorId, follows: Follows) {
        let Some(roamer) = self.roaming.roamers.get(&actor) else { return };
        let name = roamer.made_of.actor.shown_as();
        let group = roamer.made_of.group.clone();
        match (follows, roamer.given_up.clone()) {
            (Follows::Nothing, _) => {}
            (Follows::Lives(host), _) => self.lives_on(actor, host),
            (Follows::Next(..) | Follows::End(_), Some(why)) => {
                self.end_roamer(actor, Some(EndReason::Group(why)));
            }
            (Follows::Next(reason, delay), None) => {
                let text = format!("{actor} `{name}` goes on on another host in {delay:?}: {reason}");
                self.journal.node(Severity::Warn, None, text);
                let why = reason.to_string();
                let mut told = Vec::new();
                self.broker.lives_on(actor, None, &mut told);
                self.broker.tell(&Lifecycle::Down { actor, reason, will_restart: true }, &mut told);
                self.deliver(told);
                if let Some(group) = group {
                    self.group_failed(&group, Instant::now() + delay, &why, false);
                }
            }
            (Follows::End(reason), None) => {
                if let Some(reason) = reason.as_ref().filter(|reason| reason.is_failure()) {
                    let text =
                        format!("{actor} `{name}` ended, and does not go on on another host: {reason}");
                    self.journal.node(Severity::Error, None, text);
                }
                let failed = reason.as_ref().filter(|reason| reason.is_failure()).map(ToString::to_string);
                self.end_roamer(actor, reason);
                if let Some((group, why)) = group.zip(failed) {
                    self.group_failed(&group, Instant::now(), &why, true);
                }
            }
        }
    }

    /// The group of some was given up, `why`: those that live somewhere end there, and of all others no life
    /// follows.
    pub(super) fn give_up_roamers_of(&mut self, group: &Group, why: &str) {
        let why = format!("its group `{}` was given up: {why}", group.name());
        let mut between = Vec::new();
        for (actor, roamer) in &mut self.roaming.roamers {
            if roamer.made_of.group.as_ref() == Some(group) {
                roamer.given_up = Some(why.clone());
                between.extend(roamer.life.due().map(|_| *actor));
            }
        }
        between.sort();
        between.into_iter().for_each(|actor| self.end_roamer(actor, Some(EndReason::Group(why.clone()))));
    }

    /// No life of it follows: its names are free, and whoever waits for it is told.
    fn end_roamer(&mut self, actor: ActorId, why: Option<EndReason>) {
        self.roaming.roamers.remove(&actor);
        if self.broker.is_home_of(actor) {
            let mut told = Vec::new();
            self.broker.lost_foreign(actor, why, &mut told);
            self.deliver(told);
        }
    }

    /// The host that it lives on says that it has ended.
    pub(super) fn roamer_ended(&mut self, actor: ActorId, host: u16, why: Option<EndReason>) {
        let Some(roamer) = self.roaming.roamers.get_mut(&actor) else { return };
        let follows = roamer.life.ended_on(host, why);
        self.follows(actor, follows);
    }

    /// The host that it lives on has begun another life of it there.
    pub(super) fn roamer_is_up(&mut self, actor: ActorId, life: u32) {
        if let Some(roamer) = self.roaming.roamers.get_mut(&actor) {
            roamer.life.came_back(life);
        }
    }

    /// How hosts went that are not of the node any more, for the next gateway: of more than that, those that
    /// joined last.
    pub(super) fn hosts_gone(&self) -> Vec<(u16, Gone)> {
        let mut gone: Vec<_> = self.roaming.gone.iter().map(|(host, (how, _))| (*host, *how)).collect();
        gone.sort_by_key(|(host, _)| std::cmp::Reverse(*host));
        gone.truncate(MAX_GONE_TOLD);
        gone
    }

    /// The way to all other hosts is gone, and comes back no more.
    pub(super) fn forget_roamers(&mut self) {
        self.roaming.roamers.clear(); // the broker tells
    }

    /// This host shuts down: no life begins any more.
    pub(super) fn end_roaming(&mut self) {
        let away = self.roaming.roamers.iter().filter(|(_, roamer)| roamer.life.is_away());
        let away: Vec<_> = away.map(|(actor, _)| *actor).collect();
        away.into_iter().for_each(|actor| self.end_roamer(actor, Some(EndReason::NodeStopped)));
    }

    /// When the next life is due, where there is a thread for it.
    pub(super) fn next_roaming(&self) -> Option<Instant> {
        let may_begin = |roamer: &&Roamer| !self.is_group_held(roamer.made_of.group.as_ref());
        let due = self.roaming.roamers.values().filter(may_begin).filter_map(|roamer| roamer.life.due());
        due.min().filter(|_| self.roaming.beginning < MAX_MOVES)
    }

    /// Begins the lives that are due.
    pub(super) fn begin_lives(&mut self) {
        while let Some(at) = self.next_roaming().filter(|at| *at <= Instant::now()) {
            let is_next = |(_, roamer): &(&ActorId, &Roamer)| {
                roamer.life.due() == Some(at) && !self.is_group_held(roamer.made_of.group.as_ref())
            };
            let Some(next) = self.roaming.roamers.iter().find(is_next).map(|(actor, _)| *actor) else {
                return;
            };
            let Some((actor, roamer)) = self.roaming.roamers.get_mut(&next).map(|of| (&next, of)) else {
                return;
            };
            let (actor, life, made_of) = (*actor, roamer.life.begin(), Arc::clone(&roamer.made_of));
            self.roaming.beginning += 1;
            let supervisor = self.shared.all_hosts.supervisor.get().cloned().unwrap_or_default();
            let begin = move || begin(&supervisor, actor, life, &made_of);
            let thread = std::thread::Builder::new().name("tensorpost-move".to_owned()).spawn(begin);
            if let Err(error) = thread {
                let why = format!("the node has no thread to start it with: {error}");
                self.life_began(actor, NextLife::Failed(why));
            }
        }
    }

    fn life_began(&mut self, actor: ActorId, next: NextLife) {
        self.roaming.beginning = self.roaming.beginning.saturating_sub(1);
        let Some(roamer) = self.roaming.roamers.get_mut(&actor) else { return };
        let (life, name) = (roamer.life.number(), roamer.made_of.actor.shown_as().to_owned());
        let (roamer_group, given_up) = (roamer.made_of.group.clone(), roamer.given_up.is_some());
        let (is_here, is_up_on) = match next {
            NextLife::Here => (true, None),
            NextLife::On(host) => (false, Some(host)),
            NextLife::Failed(_) | NextLife::Unknown(_) => (false, None),
        };
        let follows = roamer.life.begun(next, Instant::now());
        self.follows(actor, follows);
        if is_here {
            self.roaming.roamers.remove(&actor);
            self.journal.node(Severity::Info, None, format!("{actor} `{name}` goes on on this host"));
        }
        // It began while the others of its group ended.
        let group = roamer_group.filter(|group| self.is_group_held(Some(group)));
        if let Some(group) = group.filter(|_| is_here || is_up_on.is_some()) {
            let why = format!("{actor} `{name}` began before the others had ended");
            self.group_failed(&group, Instant::now(), &why, given_up);
        }
        let lives_on = |host: &u16| self.roaming.roamers.get(&actor).is_some_and(|of| of.life.is_on(*host));
        if let Some(host) = is_up_on.filter(lives_on) {
            self.journal.node(Severity::Info, None, format!("{actor} `{name}` goes on on host {host}"));
            let mut told = Vec::new();
            self.broker.tell(&Lifecycle::Up { actor, incarnation: life }, &mut told);
            self.deliver(told);
        }
    }
}

/// Begins a life, on whichever host, and says what became of it.
fn begin(supervisor: &Weak<Supervisor>, actor: ActorId, life: u32, made_of: &Roams) {
    let Some(supervisor) = supervisor.upgrade() else { return };
    let next = next_life(&supervisor, actor, life, made_of);
    supervisor.roaming(RoamingCommand::Next(actor, next));
}
