//! What a death leaves behind in the streams of others (DEATH-1, DEATH-3), step by step: several post offices in one
//! process, and the node's own broker between them.

#![cfg(feature = "testing")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tensorpost::clock::Waited;
use tensorpost::tensor::{DType, Gpu, Tensor, TensorError, TensorStatus};
use tensorpost::testing::{Cluster, Target};

const LONG: Duration = Duration::from_secs(20);

/// Something on a stream that ends when the test ends: what a process that dies had not done.
struct Gate(#[expect(dead_code, reason = "closed while it lives")] Sender<()>);

impl Gate {
    fn close(gpu: &Gpu) -> Self {
        let (open, wait) = channel::<()>();
        let any = gpu.empty(DType::U8, &[1]).expect("memory").freeze();
        gpu.run((any.of::<u8>(),), move |_| {
            let _ = wait.recv();
        })
        .expect("a host stream");
        Gate(open)
    }
}

fn fill(gpu: &Gpu, value: f32) -> Tensor {
    let mut tensor = gpu.empty(DType::F32, &[4]).expect("memory");
    gpu.run((tensor.of_mut::<f32>(),), move |(all,)| all.fill(value)).expect("a host stream");
    tensor.freeze()
}

/// What a stage of a chain does: a new tensor from another, on the stream.
fn add_one(gpu: &Gpu, from: &Tensor) -> Result<Tensor, TensorError> {
    let mut to = gpu.empty(DType::F32, &[4])?;
    gpu.run((from.of::<f32>(), to.of_mut::<f32>()), |(from, to)| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1.0);
    })?;
    Ok(to.freeze())
}

#[track_caller]
fn is_lost<T: std::fmt::Debug>(result: Result<T, TensorError>, cluster: &Cluster, dead: usize) {
    match result {
        Err(TensorError::Tainted { by }) => assert_eq!(by, cluster.process(dead)),
        other => panic!("not an error that names the dead: {other:?}"),
    }
}

/// Sends `tensor` to `to`, and takes it out there.
fn pass(
    cluster: &Cluster,
    from: usize,
    to: &(Target<Tensor>, std::sync::Arc<tensorpost::testing::TestInbox<Tensor>>),
    tensor: Tensor,
) -> Tensor {
    cluster.send(from, &to.0, tensor);
    cluster.settle();
    to.1.take_one().message
}

/// A chain of four: the first dies with its work undone, and all others have work behind it.
#[test]
fn taint_goes_down_a_chain_before_anybody_is_released() {
    let cluster = Cluster::new(4);
    cluster.connect();
    let inboxes: Vec<_> = (0..4).map(|i| cluster.inbox::<Tensor>(i, 8)).collect();
    let good: Vec<Tensor> = {
        let first = fill(cluster.gpu(0), 1.0);
        let mut all = vec![pass(&cluster, 0, &inboxes[1], first)];
        for i in 1..4 {
            let made = add_one(cluster.gpu(i), all.last().expect("one at least")).expect("nobody has died");
            all.push(made.clone());
            if i < 3 {
                pass(&cluster, i, &inboxes[i + 1], made);
            }
        }
        all
    };
    let gate = Gate::close(cluster.gpu(0));
    let mut at = pass(&cluster, 0, &inboxes[1], fill(cluster.gpu(0), 5.0));
    let mut lost = vec![at.clone()];
    for i in 1..4 {
        let made = add_one(cluster.gpu(i), &at).expect("nobody has died");
        assert_eq!(made.status(), TensorStatus::Pending);
        lost.push(made.clone());
        if i < 3 {
            at = pass(&cluster, i, &inboxes[i + 1], made);
            lost.push(at.clone());
        }
    }
    let begin = Instant::now();
    cluster.end(0);
    cluster.settle();
    println!("marked and released after {:?}", begin.elapsed());
    for tensor in &lost {
        assert_eq!(tensor.status(), TensorStatus::Tainted { by: cluster.process(0) });
        is_lost(tensor.to_vec::<f32>(), &cluster, 0);
    }
    for i in 1..4 {
        let gpu = cluster.gpu(i);
        // DEATH-1: nothing waits for ever.
        gpu.synchronize().expect("the stream goes on");
        is_lost(gpu.download::<f32>(&lost[0]), &cluster, 0);
        is_lost(add_one(gpu, &lost[0]), &cluster, 0);
        is_lost(gpu.copy(&lost[0]), &cluster, 0);
    }
    for (i, tensor) in good.iter().enumerate() {
        assert_eq!(tensor.status(), TensorStatus::Ready, "{i}");
        assert_eq!(tensor.to_vec::<f32>().expect("made before the death"), [i.max(1) as f32 + 1.0 - f32::from(i == 0); 4]);
    }
    drop(gate);
}
