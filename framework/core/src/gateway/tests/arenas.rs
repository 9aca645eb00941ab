//! Runs that go through arenas, on host streams that run late.

use tensorpost_hosts::frame::Run;
use tensorpost_hosts::nixl::{Arena, Arenas, Passing};

use super::super::arenas::DeviceArenas;
use super::*;

const RUN: u64 = 1 << 20;

/// The arenas of process `i`, with a store for messages to and from host 7.
fn arenas(cluster: &Cluster, i: usize) -> (DeviceArenas, tokio::sync::mpsc::UnboundedReceiver<Command>) {
    let (told, commands) = unbounded_channel();
    let copiers = Copiers::staging(cluster.transport(i), true);
    (DeviceArenas { store: store_for(7, 0, told), copiers }, commands)
}

fn run(post: u64, offset: u64, bytes: u64) -> Run {
    Run { post, span: 0, offset, bytes }
}

fn reserve(arenas: &DeviceArenas) -> Arc<dyn Arena> {
    let host = arenas.copiers.number(DeviceId::HOST).expect("the first number");
    let arena = arenas.reserve(host, 2 * RUN).expect("memory");
    assert!(arenas.reserve(host + 1, RUN).is_err(), "no device has that number");
    assert!(arena.enter().is_ok() && arena.memory().bytes == 2 * RUN);
    arena
}

/// HOST-8, and HOST-11 for copies of this host: an arena stays in use until its copies have completed.
#[tokio::test]
async fn a_run_leaves_when_its_copy_has_passed_and_lands_when_it_is_submitted() {
    let cluster = Cluster::new(1);
    let (arenas, mut commands) = arenas(&cluster, 0);
    let (store, arena) = (Arc::clone(&arenas.store), reserve(&arenas));
    let data = bytes(RUN as usize + 300);
    let out = arenas.copiers.get(DeviceId::HOST, Direction::Out).expect("a copier");
    store.lend(1, Arc::new([Source::Staged(tensor(cluster.stream(0), &data), Arc::clone(&out))]));
    let gate = Gate::close(out.stream());
    let mut leaves = arenas.export(run(1, 300, RUN), &arena, RUN);
    assert!(poll(leaves.as_mut()).is_pending(), "it has not passed");
    gate.open();
    assert!(leaves.await);
    let mut there = vec![0; RUN as usize];
    arena.read(RUN, &mut there).expect("memory");
    assert!(there == data[300..]);
    // A range outside the arena or the tensor: nothing is copied, and the gateway is told.
    for (offset, at) in [(300, RUN + 1), (301, 0), (0, u64::MAX)] {
        assert!(!arenas.export(run(1, offset, RUN), &arena, at).await);
        let said = commands.try_recv().expect("the gateway is told");
        assert!(matches!(said, Command::Spoilt { host: 7, session: 0, post: 1, why: Some(_) }));
    }
    assert!(!arenas.export(run(2, 0, RUN), &arena, 0).await, "nobody sends it");

    let come = arenas.copiers.get(DeviceId::HOST, Direction::In).expect("a copier");
    let fresh = come.stream().empty(DType::U8, &[RUN as usize]).expect("memory");
    let mut lands = arenas.lands(5, 0);
    assert!(poll(lands.as_mut()).is_pending(), "nobody knows it yet");
    store.expect(5);
    assert!(poll(lands.as_mut()).is_pending(), "there is no memory yet");
    store.prepared(5, vec![Target::Staged(Landing::new(&come, fresh).expect("a host stream"))]);
    assert_eq!(lands.await, arenas.copiers.number(DeviceId::HOST));
    let gate = Gate::close(come.stream());
    let Passing(mut passing) = arenas.import(run(5, 0, RUN), &arena, RUN).await;
    assert!(poll(passing.as_mut()).is_pending(), "it has not passed");
    let Some(Target::Staged(landing)) = store.take(5).pop() else { panic!("another target") };
    let tensor = landing.into_tensor().expect("nobody has it").freeze();
    assert_eq!(tensor.status(), TensorStatus::Pending);
    gate.open();
    passing.await;
    assert!(tensor.to_vec::<u8>().expect("bytes") == data[300..]);
    assert_eq!(arenas.lands(5, 0).await, None, "it is whole");
}

/// HOST-6.
#[tokio::test]
async fn a_run_of_what_is_lost_does_not_leave() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let gate = Gate::close(cluster.stream(0));
    let mut made = cluster.stream(0).empty(DType::U8, &[100]).expect("memory");
    cluster.stream(0).run((made.of_mut::<u8>(),), |(all,)| all.fill(1)).expect("a host stream");
    cluster.send(0, &to, made.freeze());
    cluster.run_until_idle();
    let pending = inbox.take_one().message;
    let (arenas, mut commands) = arenas(&cluster, 1);
    let arena = reserve(&arenas);
    let out = arenas.copiers.get(DeviceId::HOST, Direction::Out).expect("a copier");
    arenas.store.lend(1, Arc::new([Source::Staged(pending, out)]));
    let mut leaves = arenas.export(run(1, 0, 100), &arena, 0);
    assert!(poll(leaves.as_mut()).is_pending());
    cluster.end(0);
    cluster.run_until_idle();
    assert!(!leaves.await);
    let said = commands.try_recv().expect("the gateway is told");
    assert!(matches!(said, Command::Spoilt { host: 7, session: 0, post: 1, why: None }));
    arenas.store.clear();
    gate.open();
}
