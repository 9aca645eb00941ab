//! Tensors of every type and form, sent to another process and back.

use half::{bf16, f16};
use ndarray::{Array2, ArrayD, IxDyn};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until_free};

/// "What do you see?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Seen)]
struct Look(Tensor);

/// Another process's view of a tensor.
#[derive(Serialize, Deserialize)]
struct Seen {
    process: u32,
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
    /// The elements in row-major order, by `to_vec`.
    elements: Vec<u8>,
    /// The tensor itself.
    same: Tensor,
    /// A packed copy in that process's memory.
    copy: Tensor,
}

struct Looker {
    stream: DeviceStream,
}

impl Actor for Looker {
    type Context = Context<Self>;
}

impl RemoteActor for Looker {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Looker { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Look>();
    }
}

impl Handler<Look> for Looker {
    type Result = MessageResult<Look>;

    fn handle(&mut self, Look(tensor): Look, _: &mut Context<Self>) -> Self::Result {
        let elements = bytes_of(&tensor);
        let copy = self.stream.copy(&tensor).expect("room for a copy").freeze();
        MessageResult(Seen {
            process: std::process::id(),
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            strides: tensor.strides().to_vec(),
            elements,
            same: tensor,
            copy,
        })
    }
}

fn elements<T: Element>(tensor: &Tensor) -> Vec<u8> {
    bytemuck::cast_slice(&tensor.to_vec::<T>().expect("a readable tensor of this type")).to_vec()
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    match tensor.dtype() {
        DType::Bool => elements::<bool>(tensor),
        DType::U8 => elements::<u8>(tensor),
        DType::U16 => elements::<u16>(tensor),
        DType::U32 => elements::<u32>(tensor),
        DType::U64 => elements::<u64>(tensor),
        DType::I8 => elements::<i8>(tensor),
        DType::I16 => elements::<i16>(tensor),
        DType::I32 => elements::<i32>(tensor),
        DType::I64 => elements::<i64>(tensor),
        DType::F16 => elements::<f16>(tensor),
        DType::BF16 => elements::<bf16>(tensor),
        DType::F32 => elements::<f32>(tensor),
        DType::F64 => elements::<f64>(tensor),
        // Core's `every_dtype_goes_from_process_to_process` sends these, as bytes.
        dtype => panic!("{dtype:?} has no type of Rust"),
    }
}

/// A node, a worker that looks at tensors, and memory for them.
struct Scene {
    node: Node,
    looker: Address<Look>,
    stream: DeviceStream,
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let node = builder.start().unwrap();
        let looker = node.spawn::<Looker>(()).start().unwrap().address();
        let stream = node.host_stream().unwrap();
        Scene { node, looker, stream }
    }

    /// Sends `tensor` and checks that all three see the same: this process, the other, and this one again.
    #[track_caller]
    fn check(&self, tensor: &Tensor) {
        let elements = bytes_of(tensor);
        let seen = ask(&self.node, &self.looker, Look(tensor.clone()));
        assert_ne!(seen.process, std::process::id());
        assert_eq!(seen.dtype, tensor.dtype());
        assert_eq!(seen.shape, tensor.shape());
        assert_eq!(seen.strides, tensor.strides());
        assert_eq!(seen.elements, elements, "{tensor:?} there");
        assert_eq!(bytes_of(&seen.same), elements, "{tensor:?} back");
        assert_eq!(seen.same.layout(), tensor.layout());
        assert_eq!(seen.same.lease().id(), tensor.lease().id(), "the same memory");
        assert_eq!(bytes_of(&seen.copy), elements, "the copy of {tensor:?}");
        assert_eq!(seen.copy.shape(), tensor.shape());
        assert!(seen.copy.is_contiguous());
        assert_ne!(seen.copy.lease().owner(), tensor.lease().owner(), "memory of the other process");
    }

    /// Returns a packed tensor of numbers from 0.
    fn arange(&self, shape: &[usize]) -> Tensor {
        let numbers: Vec<i32> = (0..).take(shape.iter().product()).collect();
        self.stream.from_slice(shape, &numbers).unwrap().freeze()
    }

    /// Checks that nothing is left of the tensors that were sent (LEASE-2).
    fn end(self) {
        until_free(&self.node);
    }
}

fn every_dtype_arrives_as_it_was_and_comes_back(builder: Builder) {
    fn check<T: Element>(scene: &Scene, elements: &[T]) {
        let tensor = scene.stream.from_slice(&[elements.len()], elements).unwrap().freeze();
        assert_eq!(tensor.dtype(), T::DTYPE);
        scene.check(&tensor);
        assert_eq!(
            bytes_of(&tensor),
            bytemuck::cast_slice::<T, u8>(&scene.stream.download::<T>(&tensor).unwrap())
        );
    }
    let scene = Scene::new(builder);
    check(&scene, &[true, false, true]);
    check(&scene, &[0_u8, 1, u8::MAX]);
    check(&scene, &[0_u16, 1, u16::MAX]);
    check(&scene, &[0_u32, 1, u32::MAX]);
    check(&scene, &[0_u64, 1, u64::MAX]);
    check(&scene, &[i8::MIN, -1, i8::MAX]);
    check(&scene, &[i16::MIN, -1, i16::MAX]);
    check(&scene, &[i32::MIN, -1, i32::MAX]);
    check(&scene, &[i64::MIN, -1, i64::MAX]);
    check(&scene, &[f16::MIN_POSITIVE, f16::NEG_INFINITY, f16::NAN]);
    check(&scene, &[bf16::MIN_POSITIVE, bf16::NEG_INFINITY, bf16::NAN]);
    check(&scene, &[f32::MIN_POSITIVE, f32::NEG_INFINITY, f32::NAN, -0.0]);
    check(&scene, &[f64::MIN_POSITIVE, f64::NEG_INFINITY, f64::NAN, -0.0]);
    scene.end();
}

fn every_rank_from_0_to_8(builder: Builder) {
    let scene = Scene::new(builder);
    for rank in 0..=8 {
        let shape: Vec<usize> = (0..rank).map(|axis| 1 + axis % 3).collect();
        let tensor = scene.arange(&shape);
        assert_eq!(tensor.rank(), rank);
        scene.check(&tensor);
    }
    assert!(scene.stream.zeros(DType::U8, &[1; 9]).is_err());
    let scalar = scene.stream.from_slice(&[], &[7.5_f64]).unwrap().freeze();
    assert_eq!(scalar.item::<f64>().unwrap(), 7.5);
    drop(scalar);
    scene.end();
}

fn tensors_without_elements_travel_too(builder: Builder) {
    let scene = Scene::new(builder);
    for shape in [&[0][..], &[0, 3], &[3, 0], &[2, 0, 4], &[1, 1, 1, 1, 1, 1, 1, 0]] {
        let tensor = scene.arange(shape);
        assert!(tensor.is_empty());
        scene.check(&tensor);
    }
    scene.end();
}

fn nothing_of_something_travels_too(builder: Builder) {
    let scene = Scene::new(builder);
    let whole = scene.arange(&[4, 4]);
    for nothing in [whole.slice(0, 2..2).unwrap(), whole.slice(1, 4..).unwrap(), whole.slice(0, ..0).unwrap()]
    {
        scene.check(&nothing);
    }
    drop(whole);
    scene.end();
}

fn slices_permutations_and_broadcasts_keep_their_strides_and_share_the_memory(builder: Builder) {
    let scene = Scene::new(builder);
    let whole = scene.arange(&[4, 5, 6]);
    let column = scene.arange(&[4, 1]);
    let forms = [
        whole.slice(0, 1..3).unwrap(),
        whole.slice(1, 2..).unwrap(),
        whole.slice(2, 5..6).unwrap(),
        whole.slice(0, 1..).unwrap().slice(1, ..4).unwrap().slice(2, 1..5).unwrap(),
        whole.index(1, 3).unwrap(),
        whole.permute(&[2, 0, 1]).unwrap(),
        whole.permute(&[1, 2, 0]).unwrap().slice(0, 2..4).unwrap(),
        whole.view(&[20, 6]).unwrap().permute(&[1, 0]).unwrap(),
        column.broadcast_to(&[4, 7]).unwrap(),
        column.broadcast_to(&[3, 4, 2]).unwrap().slice(1, 1..3).unwrap(),
        whole.slice(0, 2..3).unwrap().broadcast_to(&[9, 5, 6]).unwrap(),
    ];
    assert!(forms.iter().filter(|form| !form.is_contiguous()).count() > 8);
    assert_eq!(scene.stream.pool().stats().allocations, 2, "views take no memory");
    forms.iter().for_each(|form| scene.check(form));
    assert_eq!(forms[5].to_vec::<i32>().unwrap()[..4], [0, 6, 12, 18]);
    assert_eq!(forms[8].to_vec::<i32>().unwrap()[5..9], [0, 0, 1, 1]);
    drop((forms, whole, column));
    scene.end();
}

fn arrays_go_in_and_views_come_out_without_a_copy(builder: Builder) {
    let scene = Scene::new(builder);
    let array = Array2::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as f32);
    let packed = scene.stream.from_array(&array.view()).unwrap().freeze();
    let turned = scene.stream.from_array(&array.t()).unwrap().freeze();
    let seen = ask(&scene.node, &scene.looker, Look(packed.clone()));
    assert_eq!(seen.same.view_array::<f32>().unwrap(), array.clone().into_dyn());
    drop(seen);
    assert_eq!(turned.view_array::<f32>().unwrap(), array.t().into_dyn());
    let view = packed.permute(&[1, 0]).unwrap().slice(0, 1..3).unwrap();
    let seen = ask(&scene.node, &scene.looker, Look(view.clone()));
    let expected = array.t().slice(ndarray::s![1..3, ..]).to_owned().into_dyn();
    assert_eq!(seen.same.view_array::<f32>().unwrap(), expected);
    assert_eq!(seen.copy.view_array::<f32>().unwrap(), expected);
    let wide = packed.slice(1, 0..1).unwrap().broadcast_to(&[2, 3, 5]).unwrap();
    assert_eq!(wide.view_array::<f32>().unwrap()[[1, 2, 4]], 20.0);
    let none: ArrayD<f32> = ArrayD::zeros(IxDyn(&[0, 4]));
    let empty = scene.stream.from_array(&none.view()).unwrap().freeze();
    assert_eq!(empty.view_array::<f32>().unwrap(), none);
    let mut writable = scene.stream.zeros(DType::F32, &[3, 4]).unwrap();
    writable.view_array_mut::<f32>().unwrap().assign(&array);
    scene.check(&writable.freeze());
    drop((packed, turned, seen, view, wide, empty));
    scene.end();
}

fn a_tensor_of_the_other_process_can_be_read_downloaded_and_copied_here(builder: Builder) {
    let scene = Scene::new(builder);
    let theirs = ask(&scene.node, &scene.looker, Look(scene.arange(&[8, 8]))).copy;
    let column = theirs.slice(1, 3..4).unwrap();
    let expected: Vec<i32> = (0..8).map(|row| 8 * row + 3).collect();
    assert_eq!(column.to_vec::<i32>().unwrap(), expected);
    assert_eq!(scene.stream.download::<i32>(&column).unwrap(), expected);
    let ours = scene.stream.contiguous(&column).unwrap();
    assert_eq!(ours.as_slice::<i32>().unwrap(), expected);
    assert_eq!(scene.stream.contiguous(&theirs).unwrap().lease().id(), theirs.lease().id());
    // A tensor of the other process goes back to it.
    scene.check_theirs(&theirs);
    drop((theirs, column, ours));
    scene.end();
}

impl Scene {
    /// As [`check`](Self::check), for memory of the other process.
    fn check_theirs(&self, tensor: &Tensor) {
        let seen = ask(&self.node, &self.looker, Look(tensor.clone()));
        assert_eq!(seen.elements, bytes_of(tensor));
        assert_eq!(seen.same.lease().id(), tensor.lease().id());
    }
}

fn large_and_many_tensors_arrive_whole(builder: Builder) {
    let scene = Scene::new(builder);
    // One tensor is larger than a chunk, and the others together are.
    let large: Vec<u64> = (0..9 << 20).collect();
    let large = scene.stream.from_slice(&[large.len()], &large).unwrap().freeze();
    let seen = ask(&scene.node, &scene.looker, Look(large.slice(0, (9 << 20) - 2..).unwrap()));
    assert_eq!(seen.copy.to_vec::<u64>().unwrap(), [(9 << 20) - 2, (9 << 20) - 1]);
    drop((seen, large));
    let many: Vec<Tensor> = (0..500).map(|index| scene.arange(&[index + 1])).collect();
    for (index, tensor) in many.into_iter().enumerate().step_by(25) {
        let seen = ask(&scene.node, &scene.looker, Look(tensor));
        assert_eq!(seen.shape, [index + 1]);
        assert_eq!(seen.same.to_vec::<i32>().unwrap().last(), Some(&(index as i32)));
    }
    scene.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        every_dtype_arrives_as_it_was_and_comes_back,
        every_rank_from_0_to_8,
        tensors_without_elements_travel_too,
        nothing_of_something_travels_too,
        slices_permutations_and_broadcasts_keep_their_strides_and_share_the_memory,
        arrays_go_in_and_views_come_out_without_a_copy,
        a_tensor_of_the_other_process_can_be_read_downloaded_and_copied_here,
        large_and_many_tensors_arrive_whole,
    ]
}
