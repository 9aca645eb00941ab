//! Halves of links and refusals of them, as the broker passes them on.

use super::*;
use crate::transport::WhyRefused;

const WHY: WhyRefused = WhyRefused::FILES;

fn half(number: u64) -> LinkMessage {
    LinkMessage::Link { number }
}

/// Returns the deliveries, or the complaint, when worker `from` sends that link message to worker `to`.
fn say(
    broker: &mut Broker,
    from: u16,
    to: u16,
    link_message: LinkMessage,
) -> Result<Vec<Delivery>, Complaint> {
    let descriptors = if matches!(link_message, LinkMessage::Link { .. }) {
        5
    } else {
        usize::from(matches!(link_message, LinkMessage::Rings { .. }))
    };
    let (told, result) = ask(broker, from, ToNode::Route { to: process(to), link_message }, descriptors);
    result.map(|()| told)
}

fn refuse(broker: &mut Broker, from: u16, to: u16, number: u64) -> Result<Vec<Delivery>, Complaint> {
    let (told, result) = ask(broker, from, ToNode::RefuseLink { peer: process(to), number, why: WHY }, 0);
    result.map(|()| told)
}

/// Returns the refusals among the deliveries: receiver, peer, number of the half, and the process that
/// refused.
fn refused(told: &[Delivery]) -> Vec<(ProcessId, ProcessId, u64, ProcessId)> {
    let refused = told.iter().filter_map(|delivery| match delivery.message {
        FromNode::LinkRefused { peer, number, by, why: WHY, .. } => Some((delivery.to, peer, number, by)),
        _ => None,
    });
    refused.collect()
}

// WIRE-1: no process can fill another's queue.
#[test]
fn each_half_is_passed_on_once() {
    let mut broker = broker();
    assert_eq!(say(&mut broker, 1, 2, half(1)).unwrap().len(), 1);
    for number in 0..1000 {
        let again = say(&mut broker, 1, 2, half(number));
        assert!(matches!(again, Err(Complaint::LinkMessageAgain(to)) if to == process(2)));
    }
    assert_eq!(say(&mut broker, 2, 1, half(7)).unwrap().len(), 1, "the other way is another half");
    broker.left(process(2), &mut Vec::new());
    assert_eq!(broker.link_messages.len(), 0, "nothing is kept of the dead");
}

#[test]
fn another_half_goes_when_the_last_was_refused() {
    let mut broker = broker();
    for number in 1..5 {
        assert_eq!(say(&mut broker, 1, 2, half(number)).unwrap().len(), 1);
        let told = refuse(&mut broker, 2, 1, number).unwrap();
        assert_eq!(refused(&told), [(process(1), process(2), number, process(2))]);
        assert!(matches!(say(&mut broker, 1, 2, half(number)), Err(Complaint::LinkMessageAgain(_))));
    }
    // The refusal voids both halves: a process that had sent its own half may send another.
    say(&mut broker, 1, 2, half(5)).unwrap();
    say(&mut broker, 2, 1, half(1)).unwrap();
    let (one, other) = (process(1), process(2));
    let told = refuse(&mut broker, 1, 2, 1).unwrap();
    assert_eq!(refused(&told), [(other, one, 1, one), (one, other, 5, one)]);
    assert_eq!(say(&mut broker, 2, 1, half(2)).unwrap().len(), 1);
    assert_eq!(say(&mut broker, 1, 2, half(6)).unwrap().len(), 1);
}

// WIRE-1.
#[test]
fn a_refusal_of_what_was_not_sent_or_was_refused_is_forged() {
    let mut broker = broker();
    let is_forged = |told| matches!(told, Err(Complaint::NoSuchHalf(to)) if to == process(1));
    assert!(is_forged(refuse(&mut broker, 2, 1, 1)), "nothing was sent");
    say(&mut broker, 1, 2, half(3)).unwrap();
    assert!(is_forged(refuse(&mut broker, 0, 1, 3)), "not to the node");
    assert!(is_forged(refuse(&mut broker, 2, 1, 4)), "not yet");
    refuse(&mut broker, 2, 1, 3).unwrap();
    for number in 0..1000 {
        assert!(is_forged(refuse(&mut broker, 2, 1, number)));
    }
    assert!(!Complaint::NoSuchHalf(process(1)).may_be_innocent(), "it counts against the liar");
}

// A process that had not heard of a refusal has done nothing wrong, and its own refusal changes nothing.
#[test]
fn a_refusal_that_crosses_another_goes_nowhere() {
    let mut broker = broker();
    say(&mut broker, 1, 2, half(1)).unwrap();
    say(&mut broker, 2, 1, half(1)).unwrap();
    refuse(&mut broker, 1, 2, 1).unwrap();
    assert!(refuse(&mut broker, 2, 1, 1).unwrap().is_empty(), "the other was first");
    // The next half and its refusal count again.
    say(&mut broker, 1, 2, half(2)).unwrap();
    assert_eq!(refuse(&mut broker, 2, 1, 2).unwrap().len(), 1);
}

#[test]
fn a_half_that_the_node_loses_is_void_with_the_other() {
    let mut broker = broker();
    say(&mut broker, 2, 1, half(9)).unwrap();
    let mut told = Vec::new();
    let lack = || Err(rustix::io::Errno::MFILE.into());
    let result = broker.half(process(1), process(2), 4, lack(), &mut told);
    assert!(matches!(&result, Err(complaint @ Complaint::NoHalf(..)) if complaint.may_be_innocent()));
    let (one, other) = (process(1), process(2));
    assert_eq!(refused(&told), [(one, other, 4, NODE), (other, one, 9, NODE)]);
    // Its refusal was on the way.
    assert!(refuse(&mut broker, 1, 2, 9).unwrap().is_empty());
    assert_eq!(say(&mut broker, 1, 2, half(5)).unwrap().len(), 1);
    assert_eq!(say(&mut broker, 2, 1, half(10)).unwrap().len(), 1);
    let mut told = Vec::new();
    let result = broker.half(process(1), process(2), 6, lack(), &mut told);
    assert!(matches!(result, Err(Complaint::LinkMessageAgain(_))) && told.is_empty(), "it has a link");
}

// Fresh rings are offered over a link that stands, and one at a time: no process can fill another's queue.
#[test]
fn rings_are_offered_once_until_they_were_answered() {
    let mut broker = broker();
    let rings = |number| LinkMessage::Rings { number };
    let answer = |number| LinkMessage::RingsAnswer { number, is_taken: true };
    let is_too_much = |told| matches!(told, Err(Complaint::OfferAgain(to)) if to == process(2));
    let is_forged = |told| matches!(told, Err(Complaint::NoSuchOffer(to)) if to == process(1));
    assert!(is_too_much(say(&mut broker, 1, 2, rings(1))), "there is no link");
    say(&mut broker, 1, 2, half(1)).unwrap();
    assert!(is_too_much(say(&mut broker, 1, 2, rings(1))), "it is not open");
    say(&mut broker, 2, 1, half(1)).unwrap();
    assert!(is_forged(say(&mut broker, 2, 1, answer(1))), "nothing was offered");
    for number in 1..5 {
        let told = say(&mut broker, 1, 2, rings(number)).unwrap();
        assert!(matches!(&told[..], [one] if one.to == process(2) && one.descriptors.len() == 1));
        for again in 0..1000 {
            assert!(is_too_much(say(&mut broker, 1, 2, rings(again))));
        }
        assert!(is_forged(say(&mut broker, 2, 1, answer(number + 1))));
        assert_eq!(say(&mut broker, 2, 1, answer(number)).unwrap().len(), 1);
        assert!(is_forged(say(&mut broker, 2, 1, answer(number))));
        assert!(is_too_much(say(&mut broker, 1, 2, rings(number))), "no number twice");
    }
    // If the node lacks descriptors, the sender hears of it at once, and may try again.
    let mut told = Vec::new();
    broker.offer(process(1), process(2), 9, None, &mut told).unwrap();
    let refusal = LinkMessage::RingsAnswer { number: 9, is_taken: false };
    assert!(matches!(&told[..], [one] if one.to == process(1)
        && matches!(&one.message, FromNode::LinkMessage { from, link_message }
            if *from == process(2) && format!("{link_message:?}") == format!("{refusal:?}"))));
    assert_eq!(say(&mut broker, 1, 2, rings(10)).unwrap().len(), 1);
    // A process that has not heard yet that its peer refused the link has done nothing wrong.
    say(&mut broker, 2, 1, answer(10)).unwrap();
    refuse(&mut broker, 2, 1, 1).unwrap();
    assert!(say(&mut broker, 1, 2, rings(11)).unwrap().is_empty());
}
