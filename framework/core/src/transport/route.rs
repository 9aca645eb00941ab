//! Routes of messages to mailboxes. A route is looked up before the first attempt, and again when the actor
//! was not found.
//!
//! Only `actor/sending.rs` uses it. A route is a snapshot: it names one life of the actor, and can be
//! compared with a later lookup.
//!
//! **Invariants.** A sender waits in the queue of its route, and an actor has one queue for all its lives. So
//! a sender that follows an actor from one route to the next keeps its place (MBX-1).
//!
//! **Locks.** None is held beyond a call. As long as no actor of the node has moved, the directory is not
//! consulted at all.
//!
//! **On a crash** of the actor's process the link in a route is broken, and the attempt says so. **On
//! cancellation** a route is dropped, and nothing is left of it.

use std::sync::Arc;

use super::connect::NoLink;
use super::directory::{Arrival, Resolution};
use super::inbox::Inbox;
use super::{Link, LinkRefused, Queue, Transport};
use crate::ids::ActorId;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::{EndReason, ExitedProcess};

/// The way to a mailbox.
#[derive(Clone)]
pub(crate) enum Route {
    /// In this process, with the queue that its actor brought along, if any.
    Short(Arc<dyn Inbox>, Option<Queue>),
    /// In another process.
    Long(Arc<Link>, Location, Option<Queue>),
    /// Nowhere yet.
    Later(Queue),
}

/// Why there is no way to an actor.
#[derive(Debug)]
pub(crate) enum NoRoute {
    /// There is no such actor (any more).
    NoSuchActor,
    /// Its restarts are used up.
    GaveUp(EndReason),
    /// Its process has ended, and it is not restarted.
    Exited(ExitedProcess),
    /// A process lacks a resource for a link to it.
    Lack(LinkRefused),
    /// This process was forked from the one that the transport serves.
    Forked,
}

impl Transport {
    /// Returns the route to `actor`, whose address remembers `location`.
    #[inline]
    pub(crate) fn route_to(&self, actor: ActorId, location: Location) -> Result<Route, NoRoute> {
        if self.is_inherited() {
            return Err(NoRoute::Forked);
        }
        if self.directory.has_moved() {
            return self.route_by_directory(actor, location);
        }
        // As long as no actor of the node has moved, each is where its address says.
        match self.route_at(actor, location)? {
            Some(route) => Ok(route),
            None => self.route_after(actor, location),
        }
    }

    /// Returns the route to a mailbox at `location`, or `None` if no actor, or another one, is there now.
    #[inline]
    fn route_at(&self, actor: ActorId, location: Location) -> Result<Option<Route>, NoRoute> {
        if location.process == self.me {
            let inbox = self.actors.inbox(location.index).filter(|inbox| inbox.actor() == actor);
            return Ok(inbox.map(|inbox| Route::Short(inbox, None)));
        }
        match self.link_or_lack(location.process) {
            Ok(link) if !link.has_exited() => Ok(Some(Route::Long(link, location, None))),
            Ok(_) | Err(NoLink::NoPeer) => Ok(None),
            Err(NoLink::Lack(error)) => {
                let why = LinkRefused::here(&error);
                tracing::error!(peer = %location.process, "a link could not be made: {why}");
                Err(NoRoute::Lack(why))
            }
        }
    }

    #[cold]
    fn route_by_directory(&self, actor: ActorId, remembered: Location) -> Result<Route, NoRoute> {
        match self.directory.way_for(actor, remembered, &self.lifecycle, &*self.control) {
            Resolution::To(location, queue) => self.route_along(actor, location, queue),
            way => without_location(way),
        }
    }

    /// Returns the route to a mailbox at `location`, with the queue that its actor brought along, if any.
    fn route_along(
        &self,
        actor: ActorId,
        location: Location,
        queue: Option<Queue>,
    ) -> Result<Route, NoRoute> {
        let Some(mut route) = self.route_at(actor, location)? else {
            return self.route_after(actor, location);
        };
        if let Route::Short(_, slot) | Route::Long(_, _, slot) = &mut route {
            *slot = queue;
        }
        // Attached before any sender waits on this route, so that events at the new location wake the queue.
        match &route {
            Route::Short(inbox, Some(_)) => {
                self.directory.arrive_at(actor, location, Arrival::Here(&**inbox))
            }
            Route::Long(link, _, Some(_)) => self.directory.arrive_at(actor, location, Arrival::There(link)),
            _ => {}
        }
        Ok(route)
    }

    /// Returns the route after no such mailbox was found at `location`.
    #[cold]
    fn route_after(&self, actor: ActorId, location: Location) -> Result<Route, NoRoute> {
        if location.process == self.me {
            return Err(NoRoute::NoSuchActor);
        }
        let (links, lifecycle) = (&self.links, &self.lifecycle);
        match self.directory.way_after(actor, location, links, lifecycle, &self.actors, &*self.control) {
            // It moved to another process between the two lookups.
            Resolution::To(location, queue) => self.route_along(actor, location, queue),
            way => without_location(way),
        }
    }
}

fn without_location(way: Resolution) -> Result<Route, NoRoute> {
    match way {
        Resolution::Later(queue) => Ok(Route::Later(queue)),
        Resolution::GaveUp(reason) => Err(NoRoute::GaveUp(reason)),
        Resolution::Exited(exited) => Err(NoRoute::Exited(exited)),
        Resolution::To(..) | Resolution::Nowhere => Err(NoRoute::NoSuchActor),
    }
}

impl Route {
    /// Returns the queue in which senders to the mailbox wait; `None` if the index is out of range.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        match self {
            Route::Short(inbox, queue) => Some(queue.as_ref().unwrap_or_else(|| inbox.local().queue())),
            Route::Long(link, location, queue) => queue.as_ref().or_else(|| link.queue(location.index)),
            Route::Later(queue) => Some(queue),
        }
    }

    /// Returns a number that changes whenever a sender might find what it lacked.
    pub(crate) fn stamp(&self) -> u64 {
        match self {
            Route::Short(inbox, _) => inbox.local().stamp(),
            Route::Long(link, location, _) => link.stamp(location.index),
            Route::Later(_) => 0,
        }
    }

    /// Returns whether both lead to the same life of the actor.
    pub(crate) fn is(&self, other: &Route) -> bool {
        match (self, other) {
            (Route::Short(one, _), Route::Short(other, _)) => Arc::ptr_eq(one, other),
            (Route::Long(one, here, _), Route::Long(other, there, _)) => {
                Arc::ptr_eq(one, other) && here == there
            }
            (Route::Later(_), Route::Later(_)) => true,
            _ => false,
        }
    }

    /// Returns whether a message on this route may lack leases. Then only the reader finds leases that the
    /// peer has given back.
    pub(crate) fn may_lack_leases(&self) -> bool {
        matches!(self, Route::Long(link, ..) if link.may_lack_leases())
    }
}
