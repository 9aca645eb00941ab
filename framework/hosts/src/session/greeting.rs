//! How a connection of a session begins: what each side says first, and what it believes of the other's first
//! words.
//!
//! Rules and errors are those of the [session](super). Nothing changes where a greeting is a violation.

use super::steps::Step;
use super::{End, Link, Session, Violation};
use crate::frame::{Hello, Resume};
use crate::ids::Gateway;

impl Session {
    /// Begins a new connection from this side; the present one is given up. What it says first.
    pub fn dial(&mut self) -> Hello {
        self.link = None;
        self.attempt += 1;
        self.hello()
    }

    /// The other side begins a new connection; the present one is over. What this side says first.
    ///
    /// # Errors
    /// It must not say that: see [`Violation`]. The present connection stays.
    pub fn accept(&mut self, hello: &Hello) -> Result<(Link, Hello), Violation> {
        let late = hello.attempt <= self.attempt && self.steps.does(Step::LatestAttempt);
        self.check(hello)?;
        self.check_attempt(hello, late)?;
        // Before its gateway is known it has nothing of this one.
        let knows = hello.to_gateway == self.gateway || hello.to_gateway == Gateway::UNKNOWN;
        if !knows && self.steps.does(Step::ForThisGateway) {
            return Err(Violation::OtherGateway { found: hello.to_gateway, own: self.gateway });
        }
        self.take_up(hello)?;
        self.attempt = hello.attempt;
        Ok((self.up(hello.attempt), self.hello()))
    }

    /// The other side answers the last [`dial`](Self::dial).
    ///
    /// # Errors
    /// It must not say that: see [`Violation`].
    pub fn answered(&mut self, hello: &Hello) -> Result<Link, Violation> {
        self.check(hello)?;
        self.check_attempt(hello, hello.attempt != self.attempt || self.link.is_some())?;
        self.take_up(hello)?;
        Ok(self.up(hello.attempt))
    }

    /// A lane of the connection in force. `hello` is its greeting, without a resume.
    ///
    /// # Errors
    /// It is of another connection, or of another session.
    pub fn lane(&self, hello: &Hello) -> Result<Link, Violation> {
        let link = Link(hello.attempt);
        self.check(hello)?;
        let of_both = (hello.gateway, hello.to_gateway) == (self.peer_gateway, self.gateway);
        self.check_attempt(hello, self.link != Some(link) || !of_both)?;
        Ok(link)
    }

    /// What is said first over a lane of the connection in force.
    pub fn lane_hello(&self) -> Hello {
        Hello { resume: Resume::default(), ..self.hello() }
    }

    fn check(&self, hello: &Hello) -> Result<(), Violation> {
        let is_of_both = (hello.from, hello.to) == (self.peer, self.own);
        if !is_of_both || self.ended == Some(End::Lost) {
            let (own, peer) = (self.own, self.peer);
            return Err(Violation::OtherSession { from: hello.from, found: hello.to, own, peer });
        }
        let (found, current) = (hello.gateway, self.peer_gateway);
        if self.ended == Some(End::Renewed) || (found < current && self.steps.does(Step::LatestGateway)) {
            return Err(Violation::EarlierGateway { found, current });
        }
        let is_next = current != Gateway::UNKNOWN && found > current;
        if is_next && self.steps.does(Step::NextGateway) {
            return Err(Violation::NextGateway { found, current });
        }
        Ok(())
    }

    fn check_attempt(&self, hello: &Hello, late: bool) -> Result<(), Violation> {
        if late {
            return Err(Violation::Replayed { found: hello.attempt, current: self.attempt });
        }
        Ok(())
    }

    fn take_up(&mut self, hello: &Hello) -> Result<(), Violation> {
        // Both are looked at before anything changes.
        self.numbering.can_resume(hello.resume.received)?;
        self.outbound.resume(&hello.resume)?;
        self.numbering.resume(hello.resume.received);
        self.peer_gateway = hello.gateway;
        self.tell_note_room();
        Ok(())
    }

    /// What this side says to a greeting that was meant for an earlier gateway of its host, and was not
    /// accepted: who it is. Nothing follows it over that connection.
    pub fn introduce(&self, hello: &Hello) -> Hello {
        let (attempt, to_gateway) = (hello.attempt, hello.gateway);
        Hello { attempt, to_gateway, resume: Resume::default(), ..self.hello() }
    }

    fn up(&mut self, attempt: u64) -> Link {
        let link = Link(attempt);
        self.link = Some(link);
        link
    }

    fn hello(&self) -> Hello {
        let resume = Resume { received: self.numbering.received(), partial: self.inbound.partial() };
        let (gateway, to_gateway) = (self.gateway, self.peer_gateway);
        Hello { from: self.own, to: self.peer, gateway, to_gateway, attempt: self.attempt, resume }
    }
}
