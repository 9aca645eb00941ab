//! Tests of the structs without pool memory: imports are checked, and exports are released once. Miri runs
//! these.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::abi::{self, Array, DataType, Unversioned, Versioned};
use super::describe::{Described, MemoryDevice, data_type, describe};
use super::managed::{Contents, DlPack};
use crate::tensor::{DType, Layout, TensorError};

const F32: DataType = DataType { code: abi::FLOAT, bits: 32, lanes: 1 };
const ON_CPU: abi::Device = abi::Device { kind: abi::CPU, id: 0 };

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counted() -> (Arc<AtomicUsize>, Box<Counted>) {
    let drops = Arc::new(AtomicUsize::new(0));
    (Arc::clone(&drops), Box::new(Counted(drops)))
}

fn contents<'a>(data: &mut [f32], shape: &'a [usize], strides: &'a [isize], flags: u64) -> Contents<'a> {
    Contents { data: data.as_mut_ptr().cast(), device: ON_CPU, dtype: F32, shape, strides, flags }
}

#[test]
fn an_export_is_let_go_of_once_in_every_form() {
    let mut data = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (drops, owner) = counted();
    let contents = contents(&mut data, &[3, 2], &[1, 3], abi::READ_ONLY);
    let managed = DlPack::of(&contents, None, owner);
    assert!(managed.is_read_only() && !managed.is_sole());
    // A round trip, then the older form, which keeps the first export alive.
    let raw = managed.into_raw();
    // SAFETY: it was just given away.
    let managed = unsafe { DlPack::from_raw(raw) }.expect("it is of this version");
    let raw = managed.into_raw_unversioned();
    // SAFETY: as above.
    let managed = unsafe { DlPack::from_raw_unversioned(raw) };
    assert!(managed.is_read_only() && !managed.is_sole(), "it cannot say");
    let raw = managed.into_raw();
    // SAFETY: as above.
    let managed = unsafe { DlPack::from_raw(raw) }.expect("it is of this version");
    // SAFETY: the axes are those of the export.
    let described = unsafe { describe(&managed.array()) }.expect("it is a tensor");
    assert_eq!((described.layout.shape(), described.layout.strides()), (&[3, 2][..], &[1, 3][..]));
    assert_eq!((described.dtype, described.bytes), (DType::F32, 24));
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    // On another thread, as consumers do.
    std::thread::spawn(move || drop(managed)).join().expect("it is dropped");
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_consumer_is_given_the_form_that_it_knows() {
    for (version, name) in [
        (None, c"dltensor"),
        (Some((0, 8)), c"dltensor"),
        (Some((1, 0)), c"dltensor_versioned"),
        (Some((2, 0)), c"dltensor_versioned"),
    ] {
        let (drops, owner) = counted();
        let managed = DlPack::of(&contents(&mut [0.0], &[1], &[1], abi::IS_COPIED), None, owner);
        assert!(managed.is_sole());
        let (raw, found) = managed.into_capsule(version);
        assert_eq!(found, name, "{version:?}");
        // SAFETY: as a consumer does it: by the name, and once.
        unsafe {
            if found == c"dltensor" {
                let managed = raw.cast::<Unversioned>().as_ptr();
                ((*managed).deleter.expect("it has one"))(managed);
            } else {
                let managed = raw.cast::<Versioned>().as_ptr();
                assert_eq!((*managed).version.major, 1);
                ((*managed).deleter.expect("it has one"))(managed);
            }
        }
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

/// # Safety
/// `managed` is a box whose context is a box with a counter.
unsafe extern "C" fn count_and_delete(managed: *mut Versioned) {
    // SAFETY: `theirs` has made it so.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Counted>()) });
}

fn theirs(major: u32, array: Array) -> (Arc<AtomicUsize>, NonNull<c_void>) {
    let (drops, owner) = counted();
    let managed = Versioned {
        version: abi::Version { major, minor: 9 },
        context: Box::into_raw(owner).cast(),
        deleter: Some(count_and_delete),
        flags: 0,
        array,
    };
    (drops, NonNull::from(Box::leak(Box::new(managed))).cast())
}

fn of_no_axes(data: *mut f32) -> Array {
    Array {
        data: data.cast(),
        device: ON_CPU,
        ndim: 0,
        dtype: F32,
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

#[test]
fn another_version_is_deleted_and_not_looked_at() {
    let mut data = 0.5_f32;
    let (drops, raw) = theirs(2, of_no_axes(&raw mut data));
    // SAFETY: `theirs` has made it, and it is given away.
    let refused = unsafe { DlPack::from_raw(raw) }.expect_err("it is of another version");
    assert_eq!(
        refused.to_string(),
        "the DLPack tensor cannot be taken: it is of version 2.9, and only 1.x is known; ask for one by `max_version=(1, 0)`"
    );
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    let (drops, raw) = theirs(1, of_no_axes(&raw mut data));
    // SAFETY: as above.
    let taken = unsafe { DlPack::from_raw(raw) }.expect("it is of this version");
    assert!(!taken.is_sole() && !taken.is_read_only());
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(taken);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn there_need_not_be_a_deleter() {
    let mut data = 0.5_f32;
    let mut managed = Unversioned { array: of_no_axes(&raw mut data), context: null_mut(), deleter: None };
    // SAFETY: it outlives the imported tensor.
    let taken = unsafe { DlPack::from_raw_unversioned(NonNull::from(&mut managed).cast()) };
    // SAFETY: it has no axes.
    let described = unsafe { describe(&taken.array()) }.expect("it is a scalar");
    assert_eq!((described.layout.rank(), described.bytes), (0, 4));
}

/// Describes a valid array of shape `[2, 3]` after `change`.
fn said(change: impl FnOnce(&mut Array)) -> Result<Described, String> {
    let mut data = [0.0_f32; 16];
    let (mut shape, mut strides) = ([2_i64, 3], [3_i64, 1]);
    let mut array = Array {
        ndim: 2,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        ..of_no_axes(data.as_mut_ptr())
    };
    change(&mut array);
    // SAFETY: the axes are above, or those that `change` has set, or null.
    unsafe { describe(&array) }.map_err(|error| error.to_string())
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Array), expected: &str) {
    let why = said(change).expect_err("it cannot be");
    assert!(why.contains(expected), "{why}");
}

#[test]
fn what_cannot_be_is_named() {
    refused(|array| array.dtype.lanes = 4, "its elements have 4 lanes, and those of a tensor have one");
    refused(
        |array| array.dtype = DataType { code: abi::COMPLEX, bits: 32, lanes: 1 },
        "its dtype is complex32, and a tensor has one of bool, u8,",
    );
    refused(|array| array.dtype = DataType { code: 7, bits: 8, lanes: 1 }, "its dtype is type 7 of 8");
    // Floats of 4 bits, one to a byte.
    refused(
        |array| array.dtype = DataType { code: abi::FLOAT4_E2M1FN, bits: 4, lanes: 1 },
        "its dtype is type 17 of 4",
    );
    refused(|array| array.dtype.bits = 128, "its dtype is float128");
    refused(|array| array.device.kind = 10, "it is on a device of DLPack's type 10");
    refused(|array| array.ndim = -1, "it has -1 axes");
    refused(|array| array.ndim = 9, "it has 9 axes, and a tensor has at most 8");
    refused(|array| array.shape = null_mut(), "it has 2 axes, and its shape is null");
    refused(|array| array.data = null_mut(), "its data is null, and its shape [2, 3] has elements");
    refused(|array| array.byte_offset = u64::MAX - 8, "leave the address space");
    refused(|array| array.byte_offset = 2, "which is no multiple of the 4 bytes of f32");
    let mut axes = [i64::MAX, i64::MAX];
    refused(|array| array.shape = axes.as_mut_ptr(), "elements");
    refused(|array| array.strides = axes.as_mut_ptr(), "");
    let mut negative = [3, -1];
    refused(
        |array| array.strides = negative.as_mut_ptr(),
        "the stride of axis 1 is -1, and a tensor's strides are not negative; make it contiguous first",
    );
    refused(|array| array.shape = negative.as_mut_ptr(), "axis 1 of its shape has -1 elements");
    let mut far = [i64::MAX / 4, 1];
    refused(|array| array.strides = far.as_mut_ptr(), "");
}

#[test]
fn what_can_be_is_taken() {
    let packed = said(|array| array.strides = null_mut()).expect("it is packed");
    assert_eq!(packed.layout, Layout::contiguous(&[2, 3]).expect("it is small"));
    assert_eq!(said(|_| {}).expect("it is packed, too").layout, packed.layout);
    let later = said(|array| array.byte_offset = 8).expect("it has room");
    assert_eq!((later.bytes, later.place), (24, MemoryDevice::Host));
    // Strides where there is nothing to step over.
    let (mut shape, mut strides) = ([1_i64, 3], [-7_i64, 1]);
    let one_row = said(|array| (array.shape, array.strides) = (shape.as_mut_ptr(), strides.as_mut_ptr()));
    assert_eq!(one_row.expect("the first stride says nothing").bytes, 12);
    // Nothing is at null.
    let mut empty = [0_i64, 3];
    let nothing =
        said(|array| (array.shape, array.data) = (empty.as_mut_ptr(), null_mut())).expect("no element");
    assert_eq!((nothing.bytes, nothing.layout.shape()), (0, &[0, 3][..]));
    let on_gpu = said(|array| array.device = abi::Device { kind: abi::CUDA, id: 3 }).expect("it is known");
    assert_eq!(on_gpu.place, MemoryDevice::Cuda(3));
}

proptest! {
    /// An exported layout comes in unchanged.
    #[test]
    fn layouts_survive(
        axes in prop::collection::vec((0_usize..4, 0_isize..5), 0..5),
        dtype in prop::sample::select(DType::ALL.to_vec()),
    ) {
        let (shape, strides): (Vec<usize>, Vec<isize>) = axes.into_iter().unzip();
        let layout = Layout::from_parts(&shape, &strides, 0).expect("it is small");
        let mut data = [0_u128; 64];
        let contents = Contents {
            data: data.as_mut_ptr().cast(),
            device: ON_CPU,
            dtype: data_type(dtype),
            shape: &shape,
            strides: &strides,
            flags: abi::READ_ONLY,
        };
        let managed = DlPack::of(&contents, None, Box::new(()));
        // SAFETY: the axes are those of the export.
        let described: Result<_, TensorError> = unsafe { describe(&managed.array()) };
        let described = described.expect("it is a tensor");
        prop_assert_eq!((described.dtype, described.layout.shape()), (dtype, layout.shape()));
        prop_assert_eq!(described.bytes, layout.bytes_span(dtype).expect("it is small").end as u64 * u64::from(!layout.is_empty()));
        for (axis, extent) in shape.iter().enumerate() {
            if *extent > 1 && !layout.is_empty() {
                prop_assert_eq!(described.layout.strides()[axis], strides[axis]);
            }
        }
    }
}
