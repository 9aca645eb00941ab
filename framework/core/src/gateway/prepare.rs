//! Makes the tensors of a message ready before they leave, and finds memory for those that arrive. Both wait
//! for others and for the driver, on threads that may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::copier::Landing;
use super::copiers::{Copiers, Direction};
use super::head::{Head, HeadBody, Outline};
use super::in_place::InPlace;
use super::store::Target;
use crate::ids::DeviceId;
use crate::lease::PoolError;
use crate::tensor::{DeviceStream, Reserved, Tensor, TensorError, TensorMut};

/// Held by the message that waits for memory to pack its tensors: one at a time.
pub(super) type Packing = Arc<Mutex<()>>;

/// How long a message that waits to pack its tensors sleeps before it tries again. A return of memory can be
/// missed: while an attempt gives back what it took, returns by others do not wake it.
const NEXT_ATTEMPT: Duration = Duration::from_millis(50);

/// Waits until all tensors are ready, and packs those that are strided. While a pool is full, it waits until
/// there is memory for all of them and holds none until then. It calls `hungry` every so often.
///
/// # Errors
/// The data of a tensor will never be ready, the pool can never hold its packed form, or this process cannot
/// use the device.
pub(super) async fn ready(
    tensors: Vec<Tensor>,
    host: DeviceStream,
    copiers: Arc<Copiers>,
    packing: Packing,
    hungry: impl Fn(),
) -> Result<Vec<Tensor>, TensorError> {
    static SAID: AtomicBool = AtomicBool::new(false);

    let all: Arc<[Tensor]> = tensors.into();
    // Waits before it takes a turn: other messages need not wait for this data.
    let of = Arc::clone(&all);
    aside(move || there(&of)).await?;
    let pack = |waker: Option<Waker>| {
        let (all, host, copiers) = (Arc::clone(&all), host.clone(), Arc::clone(&copiers));
        move || match waker {
            Some(waker) => pack_or_wake(&all, &host, &copiers, &waker),
            None => pack(&all, &host, &copiers),
        }
    };
    let is_packed = all.iter().all(Tensor::is_contiguous);
    // Tries without a turn only if nothing has to be packed, or nobody else waits: an attempt must not take
    // the memory that another waits for.
    if is_packed || packing.try_lock().is_ok() {
        match aside(pack(None)).await {
            Err(TensorError::Pool(full @ PoolError::Full { .. })) => {
                if !SAID.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "a strided tensor for another host waits for memory to be packed: {full} (said once)"
                    );
                }
            }
            done => return done,
        }
    }
    let _turn = packing.lock().await;
    let (bell, waker) = Bell::new();
    loop {
        match aside(pack(Some(waker.clone()))).await {
            // Waiting is in vain if nobody holds any of the pool.
            Err(TensorError::Pool(PoolError::Full { in_use, .. })) if in_use > 0 => {}
            done => return done,
        }
        if timeout(NEXT_ATTEMPT, bell.rings()).await.is_err() {
            hungry();
        }
    }
}

/// Does the same as [`ready`], but at once: a full pool is an error. Blocks on the tensors, so call it on a
/// thread that may.
pub(super) fn make_ready(
    tensors: &[Tensor],
    host: &DeviceStream,
    copiers: &Copiers,
) -> Result<Vec<Tensor>, TensorError> {
    there(tensors)?;
    pack(tensors, host, copiers)
}

/// Waits on the host for all tensors. HOST-7: a stream is given only work whose inputs are complete.
fn there(tensors: &[Tensor]) -> Result<(), TensorError> {
    tensors.iter().try_for_each(|tensor| tensor.wait(None))
}

/// Packs the tensors. If a pool is full, has `waker` woken when memory comes back to one of the pools.
fn pack_or_wake(
    tensors: &[Tensor],
    host: &DeviceStream,
    copiers: &Copiers,
    waker: &Waker,
) -> Result<Vec<Tensor>, TensorError> {
    let strided = tensors.iter().filter(|tensor| !tensor.is_contiguous());
    let wanted = strided.map(|tensor| Ok((packing_stream(tensor, host, copiers)?, tensor.bytes())));
    let wanted = wanted.collect::<Result<Vec<_>, TensorError>>()?;
    for (stream, _) in &wanted {
        let pool = stream.pool();
        let of_pool = wanted.iter().filter(|(other, _)| Arc::ptr_eq(other.pool(), pool));
        if let Some(never) = pool.never_has(of_pool.map(|(_, bytes)| bytes).sum()) {
            return Err(never.into());
        }
    }
    // Removes the waker first, so that memory which this attempt takes and gives back does not wake it.
    for (stream, _) in &wanted {
        stream.pool().waits_no_more(waker);
    }
    let done = pack(tensors, host, copiers);
    if matches!(done, Err(TensorError::Pool(PoolError::Full { .. }))) {
        wanted.iter().for_each(|(stream, _)| stream.pool().wake_on_return(waker));
    }
    done
}

/// Packs all tensors or none: memory for all of them is reserved first.
fn pack(tensors: &[Tensor], host: &DeviceStream, copiers: &Copiers) -> Result<Vec<Tensor>, TensorError> {
    let room = |tensor: &Tensor| {
        // A device that this process cannot use is an error for a packed tensor, too.
        let stream = packing_stream(tensor, host, copiers)?;
        if tensor.is_contiguous() {
            return Ok(None);
        }
        tensor.check_repeats()?;
        let room = stream.settle(stream.reserve(tensor.dtype(), tensor.shape(), None)?)?;
        Ok(Some((stream, room)))
    };
    let rooms = tensors.iter().map(room).collect::<Result<Vec<_>, TensorError>>()?;
    let packed = tensors.iter().zip(rooms).map(|(tensor, room)| {
        let Some((stream, mut packed)) = room else { return Ok(tensor.clone()) };
        stream.copy_into(&mut packed, 0, tensor)?;
        let packed = packed.freeze();
        packed.wait(None)?;
        Ok(packed)
    });
    packed.collect()
}

/// Returns the stream whose memory a tensor is packed into.
fn packing_stream(
    tensor: &Tensor,
    host: &DeviceStream,
    copiers: &Copiers,
) -> Result<DeviceStream, TensorError> {
    Ok(match copiers.stages(tensor.device()) {
        true => copiers.get(tensor.device(), Direction::Out)?.stream().clone(),
        false => host.clone(),
    })
}

/// Remembers a wake-up that comes before anybody waits for it.
#[derive(Default)]
struct Bell(Notify);

impl Bell {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::new(Bell::default());
        (Arc::clone(&bell), Waker::from(bell))
    }

    async fn rings(&self) {
        self.0.notified().await;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Finds memory for the spans of an arriving message. `receiver` is the device that its receiver works on, if
/// that is known. Waits while a pool is full.
pub(super) async fn targets(
    head: &Head,
    host: &DeviceStream,
    copiers: &Arc<Copiers>,
    receiver: Option<DeviceId>,
) -> Vec<Target> {
    let mut targets = Vec::new();
    for outline in &head.tensors {
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
        true => receiver.and_then(|device| copiers.known(device, Direction::In)),
        false => copiers.known(DeviceId::HOST, Direction::In),
    };
    let copier = match known {
        Some(copier) => Some(copier),
        None => {
            let (copiers, on_gpu) = (Arc::clone(copiers), outline.on_gpu);
            let made = move || {
                let device = if on_gpu { copiers.landing_of_gpu(receiver) } else { DeviceId::HOST };
                copiers.stages(device).then(|| copiers.get(device, Direction::In)).transpose()
            };
            aside(made).await?
        }
    };
    match copier {
        Some(copier) => {
            // The landing is made with the memory, on the same thread: a second hand-over takes as long as a
            // large piece by NIXL.
            let of = Arc::clone(&copier);
            let landing = fresh(copier.stream(), outline, move |tensor| Landing::new(&of, tensor));
            Ok(Target::Staged(landing.await?))
        }
        None => Ok(Target::InPlace(fresh(host, outline, InPlace::tensor).await?)),
    }
}

/// Reserves memory that nobody uses any more, and makes something of it (CLOCK-2, HOST-7). Waits while the
/// pool is full.
async fn fresh<T: Send + 'static>(
    stream: &DeviceStream,
    outline: &Outline,
    make: impl Fn(TensorMut) -> Result<T, TensorError> + Clone + Send + 'static,
) -> Result<T, TensorError> {
    let (bell, waker) = Bell::new();
    loop {
        let (stream, dtype, shape) = (stream.clone(), outline.dtype, outline.shape.clone());
        let (make, waker) = (make.clone(), waker.clone());
        match aside(move || make(attempt(&stream, &waker, dtype, &shape)?)).await {
            Err(TensorError::Pool(PoolError::Full { .. })) => bell.rings().await,
            done => return done,
        }
    }
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

/// Runs `work` on a thread that may block.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TensorError> + Send + 'static,
) -> Result<T, TensorError> {
    // The runtime fails here only when it ends, or after a panic that was already reported.
    spawn_blocking(work).await.unwrap_or(Err(TensorError::TimedOut))
}
