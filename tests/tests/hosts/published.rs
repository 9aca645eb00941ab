//! Published state whose topic, publishers and readers are on several hosts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpost::prelude::*;
use tensorpost::published::{Publisher, Subscriber, Topic, Version};
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until, until_allocations};

use crate::{Other, head};

/// Every element of the tensor is `step`.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct State {
    step: u64,
    data: Tensor,
}

pub(crate) fn state(stream: &DeviceStream, step: u64) -> State {
    let data = stream.from_slice(&[5000], &[step; 5000]).expect("memory").freeze();
    State { step, data }
}

fn is_whole(state: &State) -> bool {
    state.data.as_slice::<u64>().expect("it is good").iter().all(|element| *element == state.step)
}

/// The address of its data in this process: the same for all readers that share one copy.
fn place(version: &Version<State>) -> *const u64 {
    version.value.data.as_slice::<u64>().expect("it is good").as_ptr()
}

/// "Read until this step is there." Passes the door first. The reply lists the steps that were seen, if all
/// were whole.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<Vec<u64>>)]
pub(crate) struct Read {
    until: u64,
    door: Option<Door>,
}

pub(crate) struct Reader {
    state: Subscriber<State>,
    /// The version that it had first, kept all the time.
    first: Option<Arc<Version<State>>>,
}

impl Actor for Reader {
    type Context = Context<Self>;
}

impl RemoteActor for Reader {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Reader { state: Subscriber::follow(env, "state"), first: None })
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        self.first = Some(self.state.ready(Duration::from_secs(10)).await?);
        Ok(())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Read>();
    }
}

impl Handler<Read> for Reader {
    type Result = ResponseFuture<Option<Vec<u64>>>;

    fn handle(&mut self, Read { until, door }: Read, _: &mut Context<Self>) -> Self::Result {
        let (mut state, first) = (self.state.clone(), self.first.clone().expect("it is prepared"));
        if let Some(door) = door {
            door.pass().expect("the gate is there");
        }
        Box::pin(async move {
            let mut steps = Vec::new();
            while steps.last().is_none_or(|step| *step < until) {
                if let Some(version) = state.latest() {
                    if !is_whole(&version.value) || !is_whole(&first.value) {
                        return None;
                    }
                    steps.push(version.value.step);
                }
                if steps.last() != Some(&until) {
                    state.changed().await.expect("the node is there");
                }
            }
            Some(steps)
        })
    }
}

/// Waits until this reader has that step, whole.
pub(crate) fn until_has(reader: &mut Subscriber<State>, step: u64) -> Arc<Version<State>> {
    let mut had = None;
    until("the version is there", || {
        had = reader.latest().filter(|version| version.value.step == step);
        had.is_some()
    });
    let had = had.expect("it was seen");
    assert!(is_whole(&had.value));
    had
}

/// Each reader sees whole versions in order, and the last one; a reader that stands still costs nobody else
/// anything.
fn readers_on_another_host_have_whole_versions_and_the_newest(builder: Builder) {
    const LAST: u64 = 300;
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let stream = node.host_stream().expect("a stream");
    let topic = node.spawn::<Topic<State>>(()).name("state").start().expect("a topic");
    let publisher = Publisher::<State>::new(topic.address());
    let publish = |step| node.block_on(publisher.publish(state(&stream, step))).expect("it is published");
    publish(1);
    let reader = |host: usize| node.spawn::<Reader>(()).on(&hosts[host]).start().expect("a reader");
    let readers = [1, 1, 0].map(reader);
    let read = |reader: &Spawned<Reader>, door| {
        let mut read = reader.address().ask(Read { until: LAST, door });
        node.block_on(read.accepted()).expect("it is accepted");
        read
    };
    let reads: Vec<_> = readers.iter().map(|reader| read(reader, None)).collect();
    let (slow, gate) = (reader(1), Gate::new());
    let slow_read = read(&slow, Some(gate.door()));
    let arrival = gate.arrival();
    for step in 2..=LAST {
        publish(step);
    }
    for read in reads {
        let steps = node.block_on(read).expect("an answer").expect("whole versions");
        assert!(steps.is_sorted_by(|a, b| a < b), "in order, each once: {steps:?}");
        assert_eq!(steps.last(), Some(&LAST));
    }
    arrival.open();
    let steps = node.block_on(slow_read).expect("an answer").expect("whole versions");
    assert!(steps.len() <= 4, "it had time for few: {steps:?}");
    // A reader that comes late, on the other host, gets the newest version and nothing else.
    let late = reader(1);
    assert_eq!(ask(&node, &late.address(), Read { until: LAST, door: None }), Some(vec![LAST]));
    // The oldest version is held too: the reader of this host has it.
    until_allocations(&node, 2);

    // A host with readers ends in order, and is not waited for.
    let since = Instant::now();
    other.terminate();
    other.ends();
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    publish(LAST + 1);
    let mut here = Subscriber::<State>::follow(&node, "state");
    until_has(&mut here, LAST + 1);
}

/// However many readers a host has, early or late, a version comes to it once.
fn readers_of_a_host_share_one_copy_of_a_version(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let stream = node.host_stream().expect("a stream");
    let topic = node.spawn::<Topic<State>>(()).on(&hosts[1]).name("state").start().expect("a topic");
    let publisher = Publisher::<State>::new(topic.address());
    let publish = |step| node.block_on(publisher.publish(state(&stream, step))).expect("it is published");
    let follow = || Subscriber::<State>::follow(&node, "state");
    let mut readers = [follow(), follow(), follow()];
    let mut step = 0;
    // A version that comes while one of them has not asked again is sent to that one separately.
    until("all have one copy", || {
        step += 1;
        publish(step);
        let [first, others @ ..] = readers.each_mut().map(|reader| until_has(reader, step));
        others.iter().all(|version| place(version) == place(&first))
    });
    let first = until_has(&mut readers[0], step);
    until("a late one has that copy too", || place(&until_has(&mut follow(), step)) == place(&first));

    // The gateway's copy goes when no reader follows any more: with the first version after which nobody asks
    // for another.
    drop((readers, first));
    publish(step + 1);
    let held = || {
        let metrics = node.metrics().expect("metrics");
        let own =
            metrics.processes.iter().find(|process| process.host.is_none() && process.name == "gateway");
        own.expect("it has one").metrics.bytes_held
    };
    until("nothing of it stays", || held() == 0);
    // Questions of readers that have ended delay nobody.
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// As on one host: readers keep their versions, and the next topic of that name goes on with higher numbers.
fn readers_outlive_the_host_of_their_topic(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let stream = node.host_stream().expect("a stream");
    let topic = node.spawn::<Topic<State>>(()).on(&hosts[1]).name("state").start().expect("a topic");
    let publisher = Publisher::<State>::new(topic.address());
    let mut readers = [(); 2].map(|()| Subscriber::<State>::follow(&node, "state"));
    for step in 1..=9 {
        node.block_on(publisher.publish(state(&stream, step))).expect("it is published");
    }
    let had = readers.each_mut().map(|reader| until_has(reader, 9));
    let mut watch = node.watch(&topic.address::<State>());
    other.terminate();
    other.ends();
    let event = watch.blocking_recv().expect("an event");
    assert!(event.is_final(), "{event}");
    let refused = node.block_on(publisher.publish(state(&stream, 10))).expect_err("it is gone");
    // It ended with its host's shutdown, or its host had left when that was reported.
    let known = if matches!(event, Lifecycle::GaveUp { .. }) { "`other`" } else { "no such actor" };
    assert!(refused.to_string().contains(known), "{event}: {refused}");
    assert!(had.iter().all(|version| is_whole(&version.value)));

    let next = node.spawn::<Topic<State>>(()).name("state").start().expect("the name is free");
    let publisher = Publisher::<State>::new(next.address());
    node.block_on(publisher.publish(state(&stream, 100))).expect("it is published");
    for (reader, had) in readers.iter_mut().zip(&had) {
        assert!(until_has(reader, 100).number > had.number);
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        readers_on_another_host_have_whole_versions_and_the_newest,
        readers_of_a_host_share_one_copy_of_a_version,
        readers_outlive_the_host_of_their_topic,
    ]
}
