//! How a connection of a session begins: the greeting of each side, and the checks of the other's greeting.
//!
//! Rules and errors are those of the [session](super). A greeting that is a violation changes nothing.

use super::steps::Step;
use super::{End, Link, Session, Violation};
use crate::frame::{Hello, Resume};
use crate::ids::Gateway;

impl Session {
    /// Begins a new connection from this side, and gives the present one up. Returns the greeting.
    pub fn dial(&mut self) -> Hello {
        self.link = None;
        self.attempt += 1;
        self.hello()
    }

    /// Accepts a new connection of the other side, which ends the present one. Returns this side's greeting.
    ///
    /// # Errors
    /// The greeting is a [`Violation`]. The present connection stays.
    pub fn accept(&mut self, hello: &Hello) -> Result<(Link, Hello), Violation> {
        let late = hello.attempt <= self.attempt && self.steps.does(Step::LatestAttempt);
        self.check(hello)?;
        self.check_attempt(hello, late)?;
        // Before the other side knows this gateway, it has nothing of it.
        let knows = hello.to_gateway == self.gateway || hello.to_gateway == Gateway::UNKNOWN;
        if !knows && self.steps.does(Step::ForThisGateway) {
            return Err(Violation::OtherGateway { found: hello.to_gateway, own: self.gateway });
        }
        self.take_up(hello)?;
        self.attempt = hello.attempt;
        Ok((self.up(hello.attempt), self.hello()))
    }

    /// Handles the other side's answer to the last [`dial`](Self::dial).
    ///
    /// # Errors
    /// The answer is a [`Violation`].
    pub fn answered(&mut self, hello: &Hello) -> Result<Link, Violation> {
        self.check(hello)?;
        self.check_attempt(hello, hello.attempt != self.attempt || self.link.is_some())?;
        self.take_up(hello)?;
        Ok(self.up(hello.attempt))
    }

    /// Accepts a lane of the connection in force. `hello` is its greeting, without a resume.
    ///
    /// # Errors
    /// The lane is of another connection, or of another session.
    pub fn lane(&self, hello: &Hello) -> Result<Link, Violation> {
        let link = Link(hello.attempt);
        self.check(hello)?;
        let of_both = (hello.gateway, hello.to_gateway) == (self.peer_gateway, self.gateway);
        self.check_attempt(hello, self.link != Some(link) || !of_both)?;
        Ok(link)
    }

    /// Returns the greeting for a lane of the connection in force.
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
        // Both are checked before anything changes.
        self.numbering.can_resume(hello.resume.received)?;
        self.outbound.resume(&hello.resume)?;
        self.numbering.resume(hello.resume.received);
        self.peer_gateway = hello.gateway;
        self.tell_note_room();
        Ok(())
    }

    /// Returns the answer to a greeting that was meant for an earlier gateway of this host, and was not
    /// accepted. It says which gateway this is. Nothing follows it over that connection.
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
