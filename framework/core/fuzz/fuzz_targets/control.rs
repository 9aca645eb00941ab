//! Anything that workers say on their control sockets, as the node's broker takes it (WIRE-1, MBX-2,
//! LEASE-4).

#![no_main]

mod growth;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tensorpost_core::clock::taint::TaintRange;
use tensorpost_core::device::Access;
use tensorpost_core::ids::{ActorId, ChunkId, DeviceId, ProcessId};
use tensorpost_core::testing::fuzz::control::{Control, Files};
use tensorpost_core::transport::WhyRefused;
use tensorpost_core::transport::control_channel::{LinkMessage, ToNode};

#[derive(Arbitrary, Debug)]
enum Step {
    Says {
        who: u8,
        what: Said,
        descriptors: u8,
    },
    /// With as many descriptors as it has to have.
    SaysRight {
        who: u8,
        what: Said,
    },
    Bytes {
        who: u8,
        bytes: Vec<u8>,
        descriptors: u8,
    },
    Pong {
        who: u8,
        number: u8,
    },
    Pings,
    Joins {
        who: u8,
    },
    Ends {
        who: u8,
    },
    Starts {
        who: u8,
    },
    ActorEnds {
        which: u8,
    },
}

/// A [`ToNode`] of small numbers, so that what is said meets.
#[derive(Arbitrary, Debug)]
enum Said {
    Link { to: u8, life: u8, number: u8 },
    Rings { to: u8, life: u8, number: u8 },
    RingsAnswer { to: u8, life: u8, number: u8, is_taken: bool },
    RefuseLink { to: u8, life: u8, number: u8, errno: Option<i32> },
    Publish { owner: Option<u8>, index: u8, bytes: u64 },
    Want { owner: u8, life: u8, index: u8, write: bool },
    Unmapped { owner: u8, life: u8, index: u8, write: bool },
    Withdraw { owner: u8, life: u8, index: u8 },
    Drained { who: u8, life: u8 },
    Tainted { round: u8, ranges: Vec<(Option<u8>, u8, u8, u8)> },
    WantActor { actor: u8 },
    Watch { actor: u8 },
    Unwatch { actor: u8 },
    Register { name: u8, length: u16, actor: u8 },
    Lookup { name: u8, length: u16 },
}

fn process(slot: u8, life: u8) -> ProcessId {
    // One more slot than there is.
    ProcessId::new(u16::from(slot % 5), u32::from(life % 4)).expect("a small slot")
}

fn message(control: &Control<'_>, who: u8, said: Said) -> (ToNode, usize) {
    let own = control.process(who.into()).unwrap_or(ProcessId::NODE);
    let chunk = |owner, life, index: u8| ChunkId { owner: process(owner, life), index: u32::from(index % 8) };
    let access = |write| if write { Access::ReadWrite } else { Access::ReadOnly };
    let actor = |actor: u8| ActorId(u64::from(actor % 16));
    let name =
        |name: u8, length: u16| char::from(name % 8 + b'a').to_string().repeat(usize::from(length % 300));
    let plain = |message| (message, 0);
    match said {
        Said::Link { to, life, number } => {
            let link_message = LinkMessage::Link { number: number.into() };
            (ToNode::Route { to: process(to, life), link_message }, 5)
        }
        Said::Rings { to, life, number } => {
            let link_message = LinkMessage::Rings { number: number.into() };
            (ToNode::Route { to: process(to, life), link_message }, 1)
        }
        Said::RingsAnswer { to, life, number, is_taken } => {
            let link_message = LinkMessage::RingsAnswer { number: number.into(), is_taken };
            plain(ToNode::Route { to: process(to, life), link_message })
        }
        Said::RefuseLink { to, life, number, errno } => {
            let why = errno.map_or(WhyRefused::BadHalf, WhyRefused::System);
            plain(ToNode::RefuseLink { peer: process(to, life), number: number.into(), why })
        }
        Said::Publish { owner, index, bytes } => {
            let owner = owner.map_or(own, |owner| process(owner, 0));
            let chunk = ChunkId { owner, index: u32::from(index % 8) };
            (ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes }, 2)
        }
        Said::Want { owner, life, index, write } => {
            plain(ToNode::WantChunk { chunk: chunk(owner, life, index), access: access(write) })
        }
        Said::Unmapped { owner, life, index, write } => {
            plain(ToNode::Unmapped { chunk: chunk(owner, life, index), access: access(write) })
        }
        Said::Withdraw { owner, life, index } => {
            plain(ToNode::WithdrawChunk { chunk: chunk(owner, life, index) })
        }
        Said::Drained { who, life } => plain(ToNode::Drained { process: process(who, life) }),
        Said::Tainted { round, ranges } => {
            let range = |(of, slot, from, to): (Option<u8>, u8, u8, u8)| TaintRange {
                process: of.map_or(own, |of| process(of, 0)),
                slot: u16::from(slot % 40),
                from: from.into(),
                to: to.into(),
                by: process(1, 0),
            };
            plain(ToNode::Tainted { round: round.into(), ranges: ranges.into_iter().map(range).collect() })
        }
        Said::WantActor { actor: which } => plain(ToNode::WantActor { actor: actor(which) }),
        Said::Watch { actor: which } => plain(ToNode::Watch { ticket: 1, actor: actor(which) }),
        Said::Unwatch { actor: which } => plain(ToNode::Unwatch { actor: actor(which) }),
        Said::Register { name: text, length, actor: which } => {
            plain(ToNode::Register { ticket: 1, name: name(text, length), actor: actor(which) })
        }
        Said::Lookup { name: text, length } => plain(ToNode::Lookup { ticket: 1, name: name(text, length) }),
    }
}

fn take(control: &mut Control<'_>, step: Step) {
    match step {
        Step::Says { who, what, descriptors } => {
            let (message, _) = message(control, who, what);
            control.says(who.into(), message, usize::from(descriptors % 6));
        }
        Step::SaysRight { who, what } => {
            let (message, descriptors) = message(control, who, what);
            control.says(who.into(), message, descriptors);
        }
        Step::Bytes { who, bytes, descriptors } => {
            control.bytes(who.into(), &bytes, usize::from(descriptors % 6));
        }
        Step::Pong { who, number } => control.answers(who.into(), number.into()),
        Step::Pings => control.answers_pings(),
        Step::Joins { who } => control.joins(who.into()),
        Step::Ends { who } => control.ends(who.into()),
        Step::Starts { who } => control.starts(who.into()),
        Step::ActorEnds { which } => control.actor_ends(which.into()),
    }
}

thread_local! {
    static FILES: Files = Files::create();
}

fuzz_target!(|steps: Vec<Step>| {
    FILES.with(|files| {
        // The bytes that 96 messages of at most 4 KiB make the node keep and say at a time, and the 1 MiB
        // that serde may take for a list before it has seen its elements.
        growth::bounded(8 << 20, 1 << 16, || {
            let mut control = Control::new(files);
            for step in steps.into_iter().take(96) {
                take(&mut control, step);
            }
            control.end();
        });
    });
});
