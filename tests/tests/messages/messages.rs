//! Messages with tensors anywhere inside: nothing is annotated, serde finds them.

use std::collections::{BTreeMap, HashMap, HashSet};

use tensorpost::message::MAX_TENSORS;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, numbers, until_free};

/// Replies with every message unchanged, so each one comes back encoded and decoded twice.
struct Echo;

impl Actor for Echo {
    type Context = Context<Self>;
}

macro_rules! echo {
    ($($message:ty),+ $(,)?) => {
        impl RemoteActor for Echo {
            type Args = ();

            fn create((): (), _: &Env) -> anyhow::Result<Self> {
                Ok(Echo)
            }

            fn handles(on: &mut Handles<Self>) {
                $(on.message::<$message>();)+
            }
        }

        $(impl Handler<$message> for Echo {
            type Result = MessageResult<$message>;

            fn handle(&mut self, message: $message, _: &mut Context<Self>) -> Self::Result {
                MessageResult(message)
            }
        })+
    };
}

echo!(
    Containers,
    External,
    Internal,
    Adjacent,
    Untagged,
    Flat,
    Newtype,
    Pair,
    Unit,
    Generic<Tensor>,
    Generic<Option<Vec<Region>>>,
    Many,
    Checked
);

struct Scene {
    node: Node,
    stream: DeviceStream,
    echo: tensorpost::node::Spawned<Echo>,
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let node = builder.start().unwrap();
        let echo = node.spawn::<Echo>(()).start().unwrap();
        Scene { stream: node.host_stream().unwrap(), node, echo }
    }

    fn echo<M: GpuMessage>(&self, message: M) -> M::Reply
    where
        Echo: Handler<M>,
    {
        ask(&self.node, &self.echo.address(), message)
    }

    /// Returns a tensor that only holds its number.
    fn tensor(&self, number: u32) -> Tensor {
        numbers(&self.stream, number, 1)
    }

    fn tensors(&self, from: u32) -> impl Iterator<Item = Tensor> {
        (from..).map(|number| self.tensor(number))
    }

    /// LEASE-2.
    fn end(self) {
        until_free(&self.node);
    }
}

fn number(tensor: &Tensor) -> u32 {
    tensor.item().unwrap()
}

fn all<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> Vec<u32> {
    tensors.into_iter().map(number).collect()
}

#[derive(Serialize, Deserialize)]
struct Region {
    label: String,
    crop: Option<Tensor>,
    inner: Vec<Region>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Containers)]
#[expect(clippy::type_complexity, reason = "depth is what it is about")]
struct Containers {
    list: Vec<Tensor>,
    some: Option<Tensor>,
    none: Option<Tensor>,
    boxed: Box<Tensor>,
    hashed: HashMap<String, Tensor>,
    sorted: BTreeMap<u8, Vec<Option<Tensor>>>,
    tuple: (u64, Tensor, (Tensor, bool)),
    array: [Tensor; 3],
    nested: Vec<BTreeMap<String, (Option<Box<[Tensor; 2]>>, u8)>>,
    tree: Region,
    result: Result<Tensor, String>,
    empty: Vec<Tensor>,
}

fn containers_at_any_depth_need_no_annotation(builder: Builder) {
    let scene = Scene::new(builder);
    let t = |number| scene.tensor(number);
    let leaf = |label: &str, number| Region { label: label.into(), crop: Some(t(number)), inner: vec![] };
    let back = scene.echo(Containers {
        list: vec![t(1), t(2)],
        some: Some(t(3)),
        none: None,
        boxed: Box::new(t(4)),
        hashed: HashMap::from([("a".into(), t(5)), ("b".into(), t(6))]),
        sorted: BTreeMap::from([(9, vec![Some(t(7)), None, Some(t(8))]), (200, vec![])]),
        tuple: (u64::MAX, t(9), (t(10), true)),
        array: [t(11), t(12), t(13)],
        nested: vec![BTreeMap::from([
            ("x".into(), (Some(Box::new([t(14), t(15)])), 1)),
            ("y".into(), (None, 2)),
        ])],
        tree: Region { label: "root".into(), crop: None, inner: vec![leaf("left", 16), leaf("right", 17)] },
        result: Ok(t(18)),
        empty: vec![],
    });
    assert_eq!(all(&back.list), [1, 2]);
    assert_eq!(all(&back.some), [3]);
    assert!(back.none.is_none() && back.empty.is_empty());
    assert_eq!(number(&back.boxed), 4);
    assert_eq!((number(&back.hashed["a"]), number(&back.hashed["b"])), (5, 6));
    assert_eq!(all(back.sorted[&9].iter().flatten()), [7, 8]);
    assert!(back.sorted[&9][1].is_none() && back.sorted[&200].is_empty());
    assert_eq!((back.tuple.0, number(&back.tuple.1), number(&back.tuple.2.0)), (u64::MAX, 9, 10));
    assert_eq!(all(&back.array), [11, 12, 13]);
    assert_eq!(all(back.nested[0]["x"].0.iter().flat_map(|pair| pair.iter())), [14, 15]);
    let tree: Vec<_> = back.tree.inner.iter().map(|leaf| (leaf.label.as_str(), all(&leaf.crop))).collect();
    assert_eq!(tree, [("left", vec![16]), ("right", vec![17])]);
    assert_eq!(number(back.result.as_ref().unwrap()), 18);
    drop(back);
    scene.end();
}

macro_rules! representations {
    ($(#[$serde:meta] $name:ident)+) => {$(
        #[derive(Serialize, Deserialize, GpuMessage)]
        #[gpu_message(reply = $name)]
        #[$serde]
        enum $name {
            Empty,
            Named { first: Tensor, rest: Vec<Tensor>, note: Option<String> },
            Inner(Region),
        }

        impl $name {
            fn text(&self) -> String {
                match self {
                    $name::Empty => "empty".into(),
                    $name::Named { first, rest, note } => format!("{} {:?} {note:?}", number(first), all(rest)),
                    $name::Inner(region) => format!("{} {:?} {}", region.label, all(&region.crop), region.inner.len()),
                }
            }
        }
    )+};
}

representations! {
    #[serde(rename_all = "snake_case")] External
    #[serde(tag = "kind")] Internal
    #[serde(tag = "kind", content = "content")] Adjacent
    #[serde(untagged)] Untagged
}

fn enums_in_all_four_representations(builder: Builder) {
    let scene = Scene::new(builder);
    macro_rules! check {
        ($($name:ident)+) => {$(
            assert_eq!(scene.echo($name::Empty).text(), "empty");
            let named = $name::Named {
                first: scene.tensor(1),
                rest: scene.tensors(2).take(3).collect(),
                note: Some("n".into()),
            };
            assert_eq!(scene.echo(named).text(), "1 [2, 3, 4] Some(\"n\")");
            let inner = Region { label: "l".into(), crop: Some(scene.tensor(5)), inner: vec![] };
            assert_eq!(scene.echo($name::Inner(inner)).text(), "l [5] 0");
        )+};
    }
    check!(External Internal Adjacent Untagged);
    scene.end();
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Loose {
    Number(u32),
    Text(String),
    Bytes(Vec<u8>),
    Image(Tensor),
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Flat)]
struct Flat {
    id: u64,
    #[serde(flatten)]
    region: Region,
    #[serde(flatten)]
    rest: BTreeMap<String, Tensor>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Newtype)]
struct Newtype(Tensor);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Pair)]
struct Pair(Tensor, #[serde(default)] Option<Tensor>);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Unit)]
struct Unit;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Generic<T>)]
struct Generic<T> {
    value: T,
    list: Vec<T>,
}

fn flatten_newtypes_tuples_units_and_generics(builder: Builder) {
    let scene = Scene::new(builder);
    let region = Region { label: "flat".into(), crop: Some(scene.tensor(1)), inner: vec![] };
    let rest = BTreeMap::from([("more".into(), scene.tensor(2)), ("most".into(), scene.tensor(3))]);
    let back = scene.echo(Flat { id: 7, region, rest });
    assert_eq!((back.id, back.region.label.as_str(), all(&back.region.crop)), (7, "flat", vec![1]));
    assert_eq!((number(&back.rest["more"]), number(&back.rest["most"]), back.rest.len()), (2, 3, 2));
    drop(back);
    assert_eq!(number(&scene.echo(Newtype(scene.tensor(4))).0), 4);
    let back = scene.echo(Pair(scene.tensor(5), Some(scene.tensor(6))));
    assert_eq!((number(&back.0), all(&back.1)), (5, vec![6]));
    drop(back);
    let Unit = scene.echo(Unit);
    let back = scene.echo(Generic { value: scene.tensor(7), list: scene.tensors(8).take(2).collect() });
    assert_eq!((number(&back.value), all(&back.list)), (7, vec![8, 9]));
    drop(back);
    let regions = vec![Region { label: "g".into(), crop: Some(scene.tensor(10)), inner: vec![] }];
    let back = scene.echo(Generic { value: Some(regions), list: vec![None] });
    assert_eq!(all(&back.value.as_ref().unwrap()[0].crop), [10]);
    assert!(back.list[0].is_none());
    drop(back);
    scene.end();
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Many)]
struct Many {
    tensors: Vec<Tensor>,
    loose: Vec<Loose>,
}

fn three_hundred_tensors_in_one_message(builder: Builder) {
    let scene = Scene::new(builder);
    let back = scene.echo(Many { tensors: scene.tensors(0).take(300).collect(), loose: vec![] });
    assert_eq!(all(&back.tensors), (0..300).collect::<Vec<u32>>());
    let leases: HashSet<_> = back.tensors.iter().map(|tensor| tensor.lease().id()).collect();
    assert_eq!(leases.len(), 300);
    drop(back);
    scene.end();
}

fn as_many_tensors_as_a_message_may_have_and_not_one_more(builder: Builder) {
    let scene = Scene::new(builder);
    let full: Vec<Tensor> = scene.tensors(0).take(MAX_TENSORS).collect();
    let back = scene.echo(Many { tensors: full, loose: vec![] });
    assert_eq!(back.tensors.len(), MAX_TENSORS);
    let mut tensors = back.tensors;
    tensors.push(scene.tensor(9));
    let error = scene.node.block_on(scene.echo.address().send(Many { tensors, loose: vec![] })).unwrap_err();
    assert!(error.to_string().contains("a message can hold 512 tensors"), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(number(error.message.tensors.last().unwrap()), 9);
    drop(error);
    scene.end();
}

fn one_tensor_many_times_is_one_lease(builder: Builder) {
    let scene = Scene::new(builder);
    let whole = numbers(&scene.stream, 0, 100);
    let mut tensors: Vec<Tensor> = (0..100).map(|index| whole.slice(0, index..=index).unwrap()).collect();
    tensors.push(whole);
    let back = scene.echo(Many { tensors, loose: vec![] });
    assert_eq!(all(&back.tensors[..100]), (0..100).collect::<Vec<u32>>());
    assert_eq!(back.tensors[100].to_vec::<u32>().unwrap().len(), 100);
    assert!(back.tensors.iter().all(|tensor| tensor.lease().same_as(back.tensors[0].lease())));
    assert_eq!(back.tensors[0].lease().handles(), 101);
    drop(back);
    scene.end();
}

// An index that looks like a number must not become one.
fn an_untagged_enum_tells_a_tensor_from_numbers_text_and_bytes(builder: Builder) {
    let scene = Scene::new(builder);
    let loose = vec![
        Loose::Image(scene.tensor(1)),
        Loose::Number(0),
        Loose::Text("text".into()),
        Loose::Bytes(vec![1, 2]),
        Loose::Image(scene.tensor(2)),
    ];
    let back = scene.echo(Many { tensors: vec![], loose });
    let text: Vec<String> = back
        .loose
        .iter()
        .map(|loose| match loose {
            Loose::Number(number) => format!("number {number}"),
            Loose::Text(text) => format!("text {text}"),
            Loose::Bytes(bytes) => format!("bytes {bytes:?}"),
            Loose::Image(tensor) => format!("tensor {}", number(tensor)),
        })
        .collect();
    assert_eq!(text, ["tensor 1", "number 0", "text text", "bytes [1, 2]", "tensor 2"]);
    drop(back);
    scene.end();
}

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Checked)]
struct Checked {
    #[tensor(dtype = u32, shape = [_, 4], device = host)]
    images: Vec<Tensor>,
    #[tensor(dtype = u32)]
    mask: Option<Tensor>,
    anything: Option<Tensor>,
}

fn a_tensor_that_does_not_fit_its_attribute_is_not_sent_and_the_message_comes_back(builder: Builder) {
    let scene = Scene::new(builder);
    let address = scene.echo.address::<Checked>();
    let good = || scene.stream.from_slice(&[2, 4], &[7_u32; 8]).unwrap().freeze();
    let float = || scene.stream.zeros(DType::F32, &[2, 4]).unwrap().freeze();
    let message = |images, mask| Checked { images, mask, anything: Some(float()) };
    let bad = [
        (
            message(vec![good(), good().view(&[4, 2]).unwrap()], None),
            "its shape must be [_, 4] and is [4, 2]",
        ),
        (message(vec![good(), float()], None), "its dtype must be u32 and is f32"),
        (message(vec![good().view(&[8]).unwrap()], None), "its shape must be [_, 4] and is [8]"),
        (message(vec![], Some(float())), "field `mask` of Checked"),
    ];
    let sent = scene.node.stats().sent;
    for (message, why) in bad {
        let images = message.images.len();
        let error = scene.node.block_on(address.send(message)).unwrap_err();
        assert!(matches!(error.reason, SendFailure::Check(_)) && !error.is_retryable());
        assert!(error.to_string().contains(why), "{error}");
        let error = address.try_send(error.message).unwrap_err();
        let AskError::NotSent(error) = scene.node.block_on(address.ask(error.message)).unwrap_err() else {
            panic!("it was sent");
        };
        assert_eq!(error.message.images.len(), images);
        if let Some(first) = error.message.images.first() {
            assert_eq!(first.to_vec::<u32>().unwrap(), [7; 8]);
        }
    }
    assert_eq!(scene.node.stats().sent, sent, "nothing left this process");
    let back = scene.node.block_on(address.ask(message(vec![good(), good()], Some(good())))).unwrap();
    assert_eq!(back.images.len(), 2);
    drop(back);
    scene.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        containers_at_any_depth_need_no_annotation,
        enums_in_all_four_representations,
        flatten_newtypes_tuples_units_and_generics,
        three_hundred_tensors_in_one_message,
        as_many_tensors_as_a_message_may_have_and_not_one_more,
        one_tensor_many_times_is_one_lease,
        an_untagged_enum_tells_a_tensor_from_numbers_text_and_bytes,
        a_tensor_that_does_not_fit_its_attribute_is_not_sent_and_the_message_comes_back,
    ]
}
