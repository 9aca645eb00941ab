//! Tensors to and from another library of the process, as a library of C sees them. The framework keeps
//! leases while the library has a tensor, and lets go of the library's memory when nobody here uses it any
//! more.

#![expect(unsafe_code, reason = "the other library is one of C")]

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::SendFailure;
use tensorpost_core::api::message::{EncodeError, GpuMessage};
use tensorpost_core::api::tensor::{DlPack, DlPackReady};
use tensorpost_core::tensor::{DType, Tensor, TensorError, TensorStatus};
use tensorpost_core::testing::Cluster;

/// Long enough for anything.
const SOON: Duration = Duration::from_secs(30);

/// `DLManagedTensorVersioned`, as in the header.
#[repr(C)]
struct Managed {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The other library's memory, with the channel that tells when it was let go.
struct Theirs {
    elements: Vec<f32>,
    shape: [i64; 1],
    gone: Sender<std::thread::ThreadId>,
}

/// # Safety
/// `managed` was made by `theirs`, and this is called once.
unsafe extern "C" fn let_go(managed: *mut Managed) {
    // SAFETY: `theirs` made it from a box, and its context from another.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    let theirs = unsafe { Box::from_raw(managed.context.cast::<Theirs>()) };
    let _ = theirs.gone.send(std::thread::current().id());
}

fn theirs(elements: &[f32], flags: u64, device: [i32; 2]) -> (DlPack, Receiver<std::thread::ThreadId>) {
    let (gone, told) = channel();
    let theirs = Theirs { elements: elements.to_vec(), shape: [elements.len() as i64], gone };
    let theirs = Box::into_raw(Box::new(theirs));
    // SAFETY: it was just made.
    let (data, shape) =
        unsafe { ((*theirs).elements.as_mut_ptr(), (&raw mut (*theirs).shape).cast::<i64>()) };
    let managed = Managed {
        version: [1, 0],
        context: theirs.cast(),
        deleter: Some(let_go),
        flags,
        data: data.cast(),
        device,
        ndim: 1,
        code: 2,
        bits: 32,
        lanes: 1,
        shape,
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = NonNull::from(Box::leak(Box::new(managed)));
    // SAFETY: it is valid until `let_go`, which may be called on any thread, and it has no other owner.
    (unsafe { DlPack::from_raw(managed.cast()) }.expect("it is of version 1"), told)
}

const HOST: [i32; 2] = [1, 0];

#[test]
fn what_another_library_has_keeps_its_lease() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let tensor = stream.from_slice(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("memory").freeze();
    let column = tensor.slice(1, 1..2).expect("it has one").to_dlpack().expect("it is there");
    assert!(column.is_read_only());
    drop(tensor);
    assert_eq!(cluster.leases(0), 1);

    let managed = column.into_raw().cast::<Managed>();
    // SAFETY: this reads as a consumer does, before the deleter is called.
    unsafe {
        let managed = managed.as_ref();
        assert_eq!((managed.version[0], managed.flags, managed.device), (1, READ_ONLY, HOST));
        assert_eq!((managed.code, managed.bits, managed.lanes), (2, 32, 1));
        let shape = std::slice::from_raw_parts(managed.shape, managed.ndim as usize);
        let strides = std::slice::from_raw_parts(managed.strides, managed.ndim as usize);
        assert_eq!((shape, strides), (&[2_i64, 1][..], &[3_i64, 1][..]));
        let first = managed.data.cast::<f32>();
        assert_eq!([*first, *first.add(3)], [2.0, 5.0]);
    }
    let address = managed.addr().get();
    // Runs on a thread that has nothing to do with this framework.
    let deleted = std::thread::spawn(move || {
        let managed = std::ptr::with_exposed_provenance_mut::<Managed>(address);
        // SAFETY: the deleter is called once.
        unsafe { ((*managed).deleter.expect("it has one"))(managed) }
    });
    deleted.join().expect("it is let go of");
    assert_eq!(cluster.leases(0), 0);
}

thread_local! {
    static KEPT: RefCell<Option<DlPack>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_can_let_go_of_a_tensor() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0).clone();
    // The thread's `KEPT` is made before the thread's turn, and so is dropped after the turn is gone.
    std::thread::spawn(move || {
        KEPT.with_borrow(Option::is_none);
        let tensor = stream.zeros(DType::U8, &[8]).expect("memory").freeze();
        let managed = tensor.to_dlpack().expect("it is there");
        KEPT.with_borrow_mut(|kept| *kept = Some(managed));
    })
    .join()
    .expect("it ends");
    let until = std::time::Instant::now() + SOON;
    while cluster.leases(0) > 0 {
        assert!(std::time::Instant::now() < until, "{}", cluster.stream(0).pool().holders());
        std::thread::yield_now();
    }
}

#[test]
fn memory_of_another_library_lives_until_its_uses_have_passed() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let (managed, gone) = theirs(&[1.0, 2.0, 3.0], 0, HOST);
    let tensor = stream.from_dlpack(managed, DlPackReady::Now).expect("it can be taken");
    assert_eq!(tensor.to_vec::<f32>().expect("it is there"), [1.0, 2.0, 3.0]);
    let tail = tensor.slice(0, 1..3).expect("it has them");
    drop(tensor);

    // Submits work that reads the tensor, behind work that is held up.
    let (go_on, stopped) = channel::<()>();
    let (told, sum) = channel();
    stream.run((), move |()| while stopped.recv().is_ok() {}).expect("it is queued");
    let read = stream.run((tail.of::<f32>(),), move |(tail,)| {
        told.send(tail.iter().sum::<f32>()).expect("somebody waits")
    });
    read.expect("it is queued");
    drop(tail);
    assert!(gone.recv_timeout(Duration::from_millis(20)).is_err(), "it is still to be read");
    drop(go_on);
    assert_eq!(sum.recv_timeout(SOON), Ok(5.0));
    let thread = gone.recv_timeout(SOON).expect("it is let go of");
    assert_ne!(
        thread,
        std::thread::current().id(),
        "whoever drops does not wait for another library's locks"
    );
    assert!(gone.recv().is_err(), "once");
    assert_eq!(cluster.leases(0), 0, "no pool knew it");
}

#[test]
fn what_is_on_the_stream_comes_first() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let other = stream.with_new_stream().expect("there is room");
    let (managed, gone) = theirs(&[0.0], 0, HOST);
    let (go_on, stopped) = channel::<()>();
    stream.run((), move |()| while stopped.recv().is_ok() {}).expect("it is queued");
    let tensor = stream.from_dlpack(managed, DlPackReady::OnStream).expect("it can be taken");
    let (told, read) = channel();
    let reads = other.run((tensor.of::<f32>(),), move |(one,)| told.send(one[0]).expect("somebody waits"));
    reads.expect("it is queued");
    assert!(read.recv_timeout(Duration::from_millis(20)).is_err(), "the other stream waits");
    drop(go_on);
    assert_eq!(read.recv_timeout(SOON), Ok(0.0));
    drop(tensor);
    gone.recv_timeout(SOON).expect("it is let go of");
}

#[test]
fn only_what_the_other_library_gave_away_can_be_written() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let take = |flags| {
        let (managed, gone) = theirs(&[1.0, 2.0], flags, HOST);
        (stream.from_dlpack(managed, DlPackReady::Now).expect("it can be taken"), gone)
    };
    for flags in [0, READ_ONLY, READ_ONLY | IS_COPIED] {
        let (tensor, gone) = take(flags);
        let shared = tensor.into_mut(stream).expect_err("it is not ours").tensor;
        let mut copy = stream.copy(&shared).expect("memory");
        drop(shared);
        copy.as_mut_slice::<f32>().expect("it is ours")[0] = 9.0;
        assert_eq!(copy.freeze().to_vec::<f32>().expect("it is there"), [9.0, 2.0]);
        gone.recv_timeout(SOON).expect("it is let go of");
    }
    let (tensor, gone) = take(IS_COPIED);
    let clone = tensor.clone();
    let shared = tensor.into_mut(stream).expect_err("there is a clone").tensor;
    drop(clone);
    let mut ours = shared.into_mut(stream).expect("nobody else has it");
    ours.as_mut_slice::<f32>().expect("it is ours")[1] = 7.0;
    assert_eq!(ours.freeze().to_vec::<f32>().expect("it is there"), [1.0, 7.0]);
    gone.recv_timeout(SOON).expect("it is let go of");
}

#[test]
fn a_writable_tensor_goes_to_another_library_and_comes_back() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let mut tensor = stream.zeros(DType::I32, &[4]).expect("memory");
    stream.run((tensor.of_mut::<i32>(),), |(x,)| x.fill(5)).expect("it is queued");
    let managed = tensor.into_dlpack().expect("it is there");
    assert!(!managed.is_read_only());
    let raw = managed.into_raw();
    // SAFETY: this consumer has it alone, and the queued work is done.
    unsafe {
        let managed = raw.cast::<Managed>().as_ref();
        assert_eq!(managed.flags, IS_COPIED);
        *managed.data.cast::<i32>().add(3) += 1;
    }
    // SAFETY: ownership is passed on.
    let managed = unsafe { DlPack::from_raw(raw) }.expect("it is of this version");
    let back = stream.from_dlpack(managed, DlPackReady::Now).expect("it can be taken");
    let back = back.into_mut(stream).expect("nobody else has it").freeze();
    assert_eq!(back.to_vec::<i32>().expect("it is there"), [5, 5, 5, 6]);
    assert_eq!(cluster.leases(0), 1, "it is the same memory");
    drop(back);
    let until = std::time::Instant::now() + SOON;
    while cluster.leases(0) > 0 {
        assert!(std::time::Instant::now() < until, "{}", stream.pool().holders());
        std::thread::yield_now();
    }
}

#[test]
fn on_a_stream_nobody_waits() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let mut tensor = stream.zeros(DType::U8, &[2]).expect("memory");
    let (go_on, stopped) = channel::<()>();
    let wait = move |(x,): (&mut [u8],)| {
        while stopped.recv().is_ok() {}
        x.fill(3);
    };
    stream.run((tensor.of_mut::<u8>(),), wait).expect("it is queued");
    let tensor = tensor.freeze();
    let other = stream.with_new_stream().expect("there is room");
    let mut back = Vec::new();
    for (taken_on, ready) in
        [(stream, DlPackReady::OnStream), (&other, DlPackReady::OnStream), (stream, DlPackReady::Now)]
    {
        let managed = stream.to_dlpack(&tensor).expect("nothing is waited for");
        // A tensor that was never a raw pointer is known to be pending, whatever `ready` says.
        back.push(taken_on.from_dlpack(managed, ready).expect("it can be taken"));
        assert_eq!(back[back.len() - 1].status(), TensorStatus::Pending);
    }
    drop(go_on);
    for back in back {
        assert_eq!(back.to_vec::<u8>().expect("it comes"), [3, 3]);
    }
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Carried(Tensor);

#[test]
fn memory_that_others_cannot_map_is_not_sent_to_them() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Carried>(1, 4);
    cluster.connect();
    let stream = cluster.stream(0);
    let (managed, gone) = theirs(&[1.0, 2.0], 0, HOST);
    let tensor = stream.from_dlpack(managed, DlPackReady::Now).expect("it can be taken");
    let refused = cluster.address(0, &to).try_send(Carried(tensor)).expect_err("it cannot be mapped there");
    assert!(
        matches!(&refused.reason, SendFailure::Encode(EncodeError::NotShared { shape }) if shape == &[2])
    );
    assert!(refused.to_string().contains("send a copy, made with `stream.copy(&tensor)`"), "{refused}");
    let copy = stream.copy(&refused.message.0).expect("memory").freeze();
    drop(refused);
    gone.recv_timeout(SOON).expect("it is let go of");
    cluster.send(0, &to, Carried(copy));
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message.0.to_vec::<f32>().expect("it is there"), [1.0, 2.0]);
}

#[test]
fn what_cannot_be_taken_is_let_go_of() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let (managed, gone) = theirs(&[1.0], 0, [2, 0]);
    let refused = stream.from_dlpack(managed, DlPackReady::Now).expect_err("it is on a GPU");
    assert!(matches!(&refused, TensorError::OtherDevice { tensor, .. } if tensor == "cuda:0"), "{refused}");
    gone.recv_timeout(SOON).expect("it is let go of");
    let (managed, gone) = theirs(&[1.0], 0, [8, 0]);
    let refused = stream.from_dlpack(managed, DlPackReady::Now).expect_err("it is somewhere");
    assert!(refused.to_string().contains("DLPack's type 8"), "{refused}");
    gone.recv_timeout(SOON).expect("it is let go of");
}
