//! Both ends of all routes between two hosts, without I/O. Its caller passes incoming frames and the results
//! of work; it returns frames to send and work to do.
//!
//! It outlives connections, as its session does. Its caller holds the lock of the session, whose pieces it
//! names.

use std::collections::VecDeque;
use std::time::Duration;

use super::reader::Reader;
use super::steps::{Step, Steps};
use super::times::Times;
use super::wire::At;
use super::writer::Writer;
use super::{Offer, Say, Took, Wrote};
use crate::frame::Run;
use crate::ids::Seq;
use crate::session::{Link, Session, Violation};

/// The sizes on which both ends of a lane have to agree, and the measure for a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes of a slot.
    pub(crate) slot: u64,
    /// Slots of an arena.
    pub(crate) slots: u8,
    /// The bytes of one frame of ballast.
    pub(crate) ballast: u32,
    /// The number of gRPC lanes, each of which is taken to be as fast as the one that was measured. 0: NIXL
    /// is chosen if its bytes arrive.
    pub(crate) lanes: u16,
}

impl Sizes {
    pub(crate) fn arena(&self) -> u64 {
        self.slot * u64::from(self.slots)
    }
}

/// Work to do. The result of each is reported as the [`Heard`] of the same name, except for [`Do::Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Do {
    /// Find out where a span lands, of a message that has come or will come.
    Locate { link: Link, post: Seq, span: u16, from: u8, asked: Duration },
    /// Make an arena on device `to` of this host, and an agent that knows it.
    Make { at: At, to: u8 },
    /// Check whether slot 0 has the bytes of the probe.
    Check { at: At },
    /// Copy a run out of a slot to its place, whatever else happens.
    Import { at: At, slot: u8, run: Run },
    /// End the agent of an arena.
    CloseIn { at: At },
    /// Free the memory of the arena, which nobody uses any more.
    Release { at: At },
    /// Make an arena on device `from` of this host, and an agent that knows it and the other side's arena;
    /// then write slot 0 twice.
    Connect { at: At, from: u8, offer: Offer },
    /// Copy a run into a slot.
    Export { at: At, slot: u8, run: Run },
    /// Write from a slot to the other side's memory, at the offset `to`.
    Write { at: At, slot: u8, to: u64, bytes: u64 },
    /// End the agent, and with it all writes; then give the arena back.
    CloseOut { at: At },
}

/// The result of work.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Where a span lands, as the number of a device of this host; `None` if it goes as pieces.
    Located {
        link: Link,
        post: Seq,
        span: u16,
        from: u8,
        /// When the work was ordered.
        asked: Duration,
        to: Option<u8>,
    },
    Made {
        at: At,
        made: Result<Offer, String>,
    },
    Checked {
        at: At,
        sound: bool,
    },
    /// The copy was submitted: code that uses the memory after this finds the bytes there (HOST-8).
    Imported {
        run: Run,
    },
    /// The copy has completed.
    Freed {
        at: At,
        slot: u8,
    },
    ClosedIn {
        at: At,
    },
    Connected {
        at: At,
        took: Result<Took, String>,
    },
    /// Whether the bytes are there, and good (HOST-6).
    Exported {
        at: At,
        slot: u8,
        filled: bool,
    },
    Written {
        at: At,
        slot: u8,
        written: Result<Wrote, String>,
    },
    ClosedOut {
        at: At,
    },
}

/// The state that the two ends share while one of them works.
pub(super) struct Context<'a> {
    pub(super) sizes: Sizes,
    pub(super) steps: Steps,
    pub(super) session: &'a mut Session,
    pub(super) link: Option<Link>,
    pub(super) says: &'a mut VecDeque<Say>,
    pub(super) dos: Vec<Do>,
    pub(super) now: Duration,
    pub(super) fallen_back: &'a mut u64,
    pub(super) times: &'a mut Times,
}

impl Context<'_> {
    pub(super) fn say(&mut self, say: Say) {
        if self.link.is_some() {
            self.says.push_back(say);
        }
    }
}

/// The lane; see the module.
#[derive(Debug)]
pub(crate) struct Lane {
    sizes: Sizes,
    steps: Steps,
    reader: Reader,
    writer: Writer,
    link: Option<Link>,
    says: VecDeque<Say>,
    fallen_back: u64,
    times: Times,
}

impl Lane {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Self::with_steps(sizes, Steps::default())
    }

    pub(super) fn with_steps(sizes: Sizes, steps: Steps) -> Self {
        let (reader, writer, says) = (Reader::default(), Writer::default(), VecDeque::new());
        Lane { sizes, steps, reader, writer, link: None, says, fallen_back: 0, times: Times::default() }
    }

    /// Returns how often NIXL failed, so that gRPC was used.
    pub(crate) fn fallen_back(&self) -> u64 {
        self.fallen_back
    }

    /// Returns the connection in force, if the lane is part of it.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link
    }

    fn with<T>(
        &mut self,
        session: &mut Session,
        now: Duration,
        work: impl FnOnce(&mut Reader, &mut Writer, &mut Context<'_>) -> T,
    ) -> (T, Vec<Do>) {
        let Lane { sizes, steps, reader, writer, link, says, fallen_back, times } = self;
        let mut context = Context {
            sizes: *sizes,
            steps: *steps,
            session,
            link: *link,
            says,
            dos: Vec::new(),
            now,
            fallen_back,
            times,
        };
        let done = work(reader, writer, &mut context);
        let dos = context.dos;
        session.bulk_carries(writer.routes_used() > 0);
        times.sent.shares.now(writer.state(), now);
        times.came.shares.now(reader.state(), now);
        (done, dos)
    }

    /// Begins a stream of this lane in a connection of the session.
    pub(crate) fn up(&mut self, link: Link, session: &mut Session, now: Duration) -> Vec<Do> {
        let dos = self.down(session, now);
        self.link = Some(link);
        session.bulk(link, true);
        let open = if self.steps.does(Step::SayOpen) { self.writer.open() } else { Vec::new() };
        self.says.push_back(Say::Begin { open });
        dos
    }

    /// Handles the end of the stream, or of its connection.
    pub(crate) fn cut(&mut self, link: Link, session: &mut Session, now: Duration) -> Vec<Do> {
        if self.link == Some(link) { self.down(session, now) } else { Vec::new() }
    }

    fn down(&mut self, session: &mut Session, now: Duration) -> Vec<Do> {
        if let Some(link) = self.link.take() {
            session.bulk(link, false);
        }
        self.says.clear();
        let work = |reader: &mut Reader, writer: &mut Writer, context: &mut Context<'_>| {
            reader.cut(context);
            writer.cut(context);
        };
        self.with(session, now, work).1
    }

    /// Ends the lane with the session: the other side is not waited for.
    pub(crate) fn end(&mut self, session: &mut Session, now: Duration) -> Vec<Do> {
        let mut dos = self.down(session, now);
        dos.extend(self.with(session, now, |reader, _, context| reader.end(context)).1);
        dos
    }

    /// Returns the next frame to send over this connection.
    pub(crate) fn next_say(&mut self, link: Link, session: &mut Session) -> Option<Say> {
        if self.link != Some(link) {
            return None;
        }
        self.says.pop_front().or_else(|| {
            let want = session.next_want(link)?;
            Some(Say::Want { post: want.post, span: want.span, device: want.device })
        })
    }

    /// Takes a frame that came over a connection.
    ///
    /// # Errors
    /// The frame is a violation.
    pub(crate) fn take(
        &mut self,
        link: Link,
        say: Say,
        session: &mut Session,
        now: Duration,
    ) -> Result<Vec<Do>, Lie> {
        if self.link != Some(link) && (self.link.is_none() || self.steps.does(Step::OldLinkIsOver)) {
            return Ok(Vec::new());
        }
        let take = |reader: &mut Reader, writer: &mut Writer, context: &mut Context<'_>| match say {
            Say::Begin { open } => reader.begin(&open, context),
            Say::Want { post, span, device } => reader.want(post, span, device, context),
            Say::Probed { at } => reader.probed(at, context),
            Say::Ballast { at, bytes } => reader.ballast(at, bytes, context),
            Say::Chosen { at, chosen } => reader.chosen(at, chosen, context),
            Say::Wrote { at, slot } => reader.wrote(at, slot, context),
            Say::Gone { at, slot } => reader.gone(at, slot, context),
            Say::Broken { at } => reader.broken(at, context),
            Say::Ended { at } => reader.ended(at, context),
            Say::Narrow { post, span, for_good } => {
                writer.narrow(post, span, for_good, context);
                Ok(())
            }
            Say::Offer { at, device, offer } => writer.offer(at, device, offer, context),
            Say::Sound { at, sound } => writer.sound(at, sound, context),
            Say::Had { at } => writer.had(at, context),
            Say::Grant { at, slot, run } => writer.grant(at, slot, run, context),
        };
        let (taken, dos) = self.with(session, now, take);
        taken.map(|()| dos)
    }

    /// Handles the result of work.
    pub(crate) fn heard(&mut self, heard: Heard, session: &mut Session, now: Duration) -> Vec<Do> {
        let hear = |reader: &mut Reader, writer: &mut Writer, context: &mut Context<'_>| match heard {
            Heard::Located { link, post, span, from, asked, to } if context.link == Some(link) => {
                context.times.came.placed.add(context.now.saturating_sub(asked));
                reader.located(post, span, from, to, context);
            }
            // The work was ordered over a connection that is over.
            Heard::Located { .. } => {}
            Heard::Made { at, made } => reader.made(at, made, context),
            Heard::Checked { at, sound } => reader.checked(at, sound, context),
            Heard::Imported { run } => context.session.landed_run(&run),
            Heard::Freed { at, slot } => reader.freed(at, slot, context),
            Heard::ClosedIn { at } => reader.closed(at, context),
            Heard::Connected { at, took } => writer.connected(at, took, context),
            Heard::Exported { at, slot, filled } => writer.exported(at, slot, filled, context),
            Heard::Written { at, slot, written } => writer.written(at, slot, written, context),
            Heard::ClosedOut { at } => writer.closed(at, context),
        };
        self.with(session, now, hear).1
    }

    /// Checks whether something has taken too long.
    pub(crate) fn tick(&mut self, session: &mut Session, now: Duration) -> Vec<Do> {
        // Logged before this call counts as activity.
        self.times.tick(session.peer(), now);
        if !self.writer.is_waiting() {
            return Vec::new();
        }
        self.with(session, now, |_, writer, context| writer.tick(context)).1
    }

    /// Returns whether there is something to check.
    pub(crate) fn is_waiting(&self) -> bool {
        self.writer.is_waiting() || self.times.has_some()
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        self.says.is_empty() && self.writer.is_at_rest() && self.reader.is_at_rest()
    }

    #[cfg(test)]
    pub(crate) fn routes_used(&self) -> usize {
        self.writer.routes_used()
    }
}

/// A violation by the other side.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lie {
    #[error(transparent)]
    Session(#[from] Violation),
    #[error("of route {} it says {what} in epoch {}, which cannot be", .at.route, .at.epoch)]
    Route { at: At, what: &'static str },
    #[error("it wants room for more than {most} spans at a time")]
    Wants { most: usize },
}

impl Lie {
    pub(super) fn of(at: At, what: &'static str) -> Result<(), Lie> {
        Err(Lie::Route { at, what })
    }
}
