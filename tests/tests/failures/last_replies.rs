//! A worker that ends has answered: each asker gets its reply, even where it was slow to read.

use std::time::Duration;

use futures_util::future::join_all;
use tensorpost::actor::{AskFailure, Refusal};
use tensorpost::prelude::*;
use tensorpost::testing::fault::{Action, Fault};
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::ask;

/// Asks that are under way at once. Their replies are twice as large as a ring.
const ASKS: u32 = 64;

/// Bytes of a reply.
const REPLY: usize = 32 << 10;

/// How long the asker does not read.
const READS_LATE: Duration = Duration::from_millis(300);

/// "Answer, and end at the last."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u8>)]
struct Question {
    number: u32,
    /// Whether its handler panics; otherwise the actor stops.
    panics: bool,
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Question))]
struct Answers;

impl Handler<Question> for Answers {
    type Result = MessageResult<Question>;

    fn handle(&mut self, Question { number, panics }: Question, ctx: &mut Context<Self>) -> Self::Result {
        if number == ASKS {
            assert!(!panics, "as told");
            ctx.stop();
        }
        MessageResult(vec![7; REPLY])
    }
}

/// "Ask, and report how many asks were answered, and how the others failed."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u32, Vec<String>))]
struct Begin {
    whom: Address<Question>,
    panics: bool,
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Begin))]
struct Asks;

impl Handler<Begin> for Asks {
    type Result = ResponseFuture<(u32, Vec<String>)>;

    fn handle(&mut self, Begin { whom, panics }: Begin, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move {
            // This makes the link, so that all others are sent before this process reads again.
            let first = whom.ask(Question { number: 0, panics }).await;
            let others = (1..=ASKS).map(|number| whom.ask(Question { number, panics }));
            let (mut answered, mut failed) = (0, Vec::new());
            for reply in [first].into_iter().chain(join_all(others).await) {
                match reply {
                    Ok(reply) => answered += u32::from(reply.len() == REPLY),
                    Err(AskError::NoReply(AskFailure::Refused(Refusal::Panicked(_)))) => {
                        failed.push("panicked".to_owned())
                    }
                    Err(error) => failed.push(error.to_string()),
                }
            }
            (answered, failed)
        })
    }
}

fn ends_behind_its_replies(builder: Builder, panics: bool) {
    let node = builder.start().unwrap();
    // The process ends with the only actor in it.
    let restart = Restart::always(1);
    let answers = node.spawn::<Answers>(()).mailbox(ASKS + 1).restart(restart).start().unwrap();
    let asks = node.spawn::<Asks>(()).start().unwrap();
    // These come after the order to begin and the first reply.
    node.supervisor().arm(asks.worker(), Fault::new("transport.take.frame", Action::Delay(READS_LATE)).at(3));
    let (answered, failed) = ask(&node, &asks.address(), Begin { whom: answers.address(), panics });
    let expected = if panics { (ASKS, vec!["panicked".to_owned()]) } else { (ASKS + 1, Vec::new()) };
    assert_eq!((answered, failed), expected);
}

fn a_worker_that_ends_with_its_actor_has_sent_its_replies(builder: Builder) {
    ends_behind_its_replies(builder, false);
}

fn a_worker_whose_actor_panics_has_sent_its_replies(builder: Builder) {
    ends_behind_its_replies(builder, true);
}

fn a_reply_waits_for_its_link_before_the_worker_ends(builder: Builder) {
    let node = builder.start().unwrap();
    let answers = node.spawn::<Answers>(()).restart(Restart::on_failure(1)).start().unwrap();
    // The delay is longer than a handler takes, so the reply is there first.
    let late = Fault::new("transport.link.acknowledged", Action::Delay(READS_LATE));
    node.supervisor().arm(answers.worker(), late);
    let reply = node.block_on(answers.address().ask(Question { number: ASKS, panics: true }));
    let Err(AskError::NoReply(failure)) = reply else { panic!("{reply:?}") };
    assert!(matches!(failure, AskFailure::Refused(Refusal::Panicked(_))), "{failure}");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_worker_that_ends_with_its_actor_has_sent_its_replies,
        a_worker_whose_actor_panics_has_sent_its_replies,
        a_reply_waits_for_its_link_before_the_worker_ends,
    ]
}
