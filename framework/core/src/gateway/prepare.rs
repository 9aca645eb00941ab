//! The tensors of a message before they leave, and memory for those that come. Both wait for others, and for the driver, on threads that
//! may.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::copier::Landing;
use super::copiers::{Copiers, Way};
use super::head::{Head, HeadBody, Outline};
use super::in_place::InPlace;
use super::store::Target;
use crate::ids::DeviceId;
use crate::lease::PoolError;
use crate::tensor::{DeviceStream, Reserved, Tensor, TensorError, TensorMut};

/// Who waits for memory to pack tensors: one at a time.
pub(super) type Packing = Arc<Mutex<()>>;

/// Waits until all tensors are there, and packs those that are not. Where a pool is full it calls `hungry`, and waits until there is memory for all
/// of them; until then it has none.
///
/// # Errors
/// A tensor whose data will never be there, or that there can be no memory to pack for; a device that this process cannot use.
pub(super) async fn ready(
    tensors: Vec<Tensor>,
    host: DeviceStream,
    copiers: Arc<Copiers>,
    packing: Packing,
    hungry: impl FnOnce(),
) -> Result<Vec<Tensor>, TensorError> {
    let all: Arc<[Tensor]> = tensors.into();
    let pack = |waker: Option<Waker>| {
        let (all, host, copiers) = (Arc::clone(&all), host.clone(), Arc::clone(&copiers));
        move || match waker {
            Some(waker) => packed_when_woken(&all, &host, &copiers, &waker),
            None => make_ready(&all, &host, &copiers),
        }
    };
    let is_packed = all.iter().all(Tensor::is_contiguous);
    // Nobody takes what another waits for.
    if is_packed || packing.try_lock().is_ok() {
        match aside(pack(None)).await {
            Err(TensorError::Pool(PoolError::Full { .. })) => {}
            done => return done,
        }
    }
    hungry();
    let _turn = packing.lock().await;
    when_there_is_room(|waker| pack(Some(waker))).await
}

/// The same at once, on a thread that may wait for the tensors: an error where a pool is full.
pub(super) fn make_ready(
    tensors: &[Tensor],
    host: &DeviceStream,
    copiers: &Copiers,
) -> Result<Vec<Tensor>, TensorError> {
    // HOST-7: the stream is given only what has passed.
    tensors.iter().try_for_each(|tensor| tensor.wait(None))?;
    tensors.iter().map(|tensor| packed(tensor, &packing_stream(tensor, host, copiers)?)).collect()
}

/// The same, and where pools are full `waker` is woken when memory comes back to one of them.
fn packed_when_woken(
    tensors: &[Tensor],
    host: &DeviceStream,
    copiers: &Copiers,
    waker: &Waker,
) -> Result<Vec<Tensor>, TensorError> {
    let streams = tensors.iter().filter(|tensor| !tensor.is_contiguous());
    let streams = streams.map(|tensor| packing_stream(tensor, host, copiers));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    let returned = || streams.iter().fold(0_u64, |sum, stream| sum.wrapping_add(stream.pool().returned()));
    loop {
        // What this attempt takes and gives back is not to wake it.
        streams.iter().for_each(|stream| stream.pool().waits_no_more(waker));
        let done = make_ready(tensors, host, copiers);
        if !matches!(done, Err(TensorError::Pool(PoolError::Full { .. }))) {
            return done;
        }
        let before = returned();
        streams.iter().for_each(|stream| stream.pool().wake_on_return(waker));
        if returned() == before {
            return done;
        }
    }
}

/// Where a tensor is packed.
fn packing_stream(
    tensor: &Tensor,
    host: &DeviceStream,
    copiers: &Copiers,
) -> Result<DeviceStream, TensorError> {
    Ok(match copiers.stages(tensor.device()) {
        true => copiers.get(tensor.device(), Way::Out)?.stream().clone(),
        false => host.clone(),
    })
}

fn packed(tensor: &Tensor, stream: &DeviceStream) -> Result<Tensor, TensorError> {
    if tensor.is_contiguous() {
        return Ok(tensor.clone());
    }
    tensor.check_repeats()?;
    let mut packed = stream.settle(stream.reserve(tensor.dtype(), tensor.shape(), None)?)?;
    stream.copy_into(&mut packed, 0, tensor)?;
    let packed = packed.freeze();
    packed.wait(None)?;
    Ok(packed)
}

/// Memory for the spans of a message that comes, for one that works on this device where that is known. Waits while a pool is full.
pub(super) async fn targets(
    head: &Head,
    host: &DeviceStream,
    copiers: &Arc<Copiers>,
    receiver: Option<DeviceId>,
) -> Vec<Target> {
    let mut targets = Vec::new();
    for outline in head.tensors.iter().filter(|outline| outline.span().is_some()) {
        targets.push(match target(outline, host, copiers, receiver).await {
            Ok(target) => target,
            Err(error) => Target::Nowhere(format!("there is no memory for a tensor in it: {error}")),
        });
    }
    if let HeadBody::Span(bytes) = head.body {
        targets.push(Target::InPlace(InPlace::body(bytes)));
    }
    targets
}

async fn target(
    outline: &Outline,
    host: &DeviceStream,
    copiers: &Arc<Copiers>,
    receiver: Option<DeviceId>,
) -> Result<Target, TensorError> {
    let stages = outline.on_gpu || copiers.stages(DeviceId::HOST);
    if !stages {
        return Ok(Target::InPlace(fresh(host, outline, InPlace::tensor).await?));
    }
    let known = match outline.on_gpu {
        true => receiver.and_then(|device| copiers.known(device, Way::In)),
        false => copiers.known(DeviceId::HOST, Way::In),
    };
    let copier = match known {
        Some(copier) => Some(copier),
        None => {
            let (copiers, on_gpu) = (Arc::clone(copiers), outline.on_gpu);
            let made = move || {
                let device = if on_gpu { copiers.landing_of_gpu(receiver) } else { DeviceId::HOST };
                copiers.stages(device).then(|| copiers.get(device, Way::In)).transpose()
            };
            aside(made).await?
        }
    };
    match copier {
        Some(copier) => {
            // With the memory, on one thread: to be handed over twice takes as long as a large piece by NIXL.
            let of = Arc::clone(&copier);
            let landing = fresh(copier.stream(), outline, move |tensor| Landing::new(&of, tensor));
            Ok(Target::Staged(landing.await?))
        }
        None => Ok(Target::InPlace(fresh(host, outline, InPlace::tensor).await?)),
    }
}

/// What is made of new memory that nobody uses any more (CLOCK-2, HOST-7). Waits while the pool is full.
async fn fresh<T: Send + 'static>(
    stream: &DeviceStream,
    outline: &Outline,
    make: impl Fn(TensorMut) -> Result<T, TensorError> + Clone + Send + 'static,
) -> Result<T, TensorError> {
    when_there_is_room(|waker| {
        let (stream, dtype, shape) = (stream.clone(), outline.dtype, outline.shape.clone());
        let make = make.clone();
        move || make(attempt(&stream, &waker, dtype, &shape)?)
    })
    .await
}

/// What comes of an attempt on a thread that may wait, made again when the waker is woken that it was given, as long as a pool is full.
async fn when_there_is_room<T: Send + 'static, A>(attempt: impl Fn(Waker) -> A) -> Result<T, TensorError>
where
    A: FnOnce() -> Result<T, TensorError> + Send + 'static,
{
    loop {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        match aside(attempt(waker)).await {
            Err(TensorError::Pool(PoolError::Full { .. })) => until_woken().await,
            done => return done,
        }
    }
}

/// Lets this task sleep until somebody wakes it, who may have done so since it was last asked.
async fn until_woken() {
    let mut has_slept = false;
    poll_fn(|_| if std::mem::replace(&mut has_slept, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

fn attempt(
    stream: &DeviceStream,
    waker: &Waker,
    dtype: crate::tensor::DType,
    shape: &[usize],
) -> Result<TensorMut, TensorError> {
    let reserved: Reserved = stream.reserve(dtype, shape, Some(waker))?;
    stream.settle(reserved)
}

/// On a thread that may wait.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TensorError> + Send + 'static,
) -> Result<T, TensorError> {
    // An error of the runtime is its end, or a panic, which was reported.
    spawn_blocking(work).await.unwrap_or(Err(TensorError::TimedOut))
}
