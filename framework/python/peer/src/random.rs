//! Makes values from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tensorpost_core::tensor::{DType, DeviceStream, Tensor};

use crate::types::*;

/// Random numbers (xorshift64*), and the tensors that were made with them, in order.
pub(crate) struct Random<'a> {
    state: u64,
    stream: &'a DeviceStream,
    pub(crate) tensors: Vec<Tensor>,
    /// How many values may still be inside the one that is being made.
    room: u32,
}

impl<'a> Random<'a> {
    pub(crate) fn new(seed: u64, stream: &'a DeviceStream) -> Self {
        Random { state: seed.wrapping_mul(2).wrapping_add(1), stream, tensors: Vec::new(), room: 24 }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.bits() % most
    }

    /// Returns a number; half of them are at an edge of their form on the wire.
    pub(crate) fn integer(&mut self) -> u64 {
        const EDGES: [u64; 13] =
            [0, 1, 31, 32, 127, 128, 255, 256, 65_535, 65_536, u32::MAX as u64, 1 << 32, u64::MAX];
        match self.below(4) {
            0 => EDGES[self.below(13) as usize],
            1 => EDGES[self.below(13) as usize].wrapping_neg(),
            2 => self.below(300),
            _ => self.bits(),
        }
    }

    pub(crate) fn text(&mut self) -> String {
        const LETTERS: [char; 10] = ['a', 'Z', '"', '\\', '\n', '\u{7f}', 'ß', '€', '𝄞', '\0'];
        let length = [0, 1, 5, 31, 32, 300][self.below(6) as usize];
        (0..length).map(|_| LETTERS[self.below(10) as usize]).collect()
    }

    pub(crate) fn float(&mut self) -> f64 {
        [0.0, -0.0, 1.5, f64::INFINITY, f64::MIN_POSITIVE, 0.1, f64::NAN, -3e300][self.below(8) as usize]
    }

    /// Returns a small count, and zero if much was made already.
    pub(crate) fn count(&mut self) -> usize {
        if self.room == 0 {
            return 0;
        }
        self.room -= 1;
        self.below(4) as usize
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let tensor = self.stream.zeros(dtype, shape).expect("memory").freeze();
        self.tensors.push(tensor.clone());
        tensor
    }
}

/// A value from a seed, made depth first, as serde goes through it.
pub(crate) trait Make {
    fn make(random: &mut Random<'_>) -> Self;
}

macro_rules! integers {
    ($($type:ty),+) => { $(
        impl Make for $type {
            fn make(random: &mut Random<'_>) -> Self {
                random.integer() as $type
            }
        }
    )+ };
}

integers!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

impl Make for f32 {
    fn make(random: &mut Random<'_>) -> Self {
        random.float() as f32
    }
}

impl Make for f64 {
    fn make(random: &mut Random<'_>) -> Self {
        random.float()
    }
}

impl Make for bool {
    fn make(random: &mut Random<'_>) -> Self {
        random.below(2) == 1
    }
}

impl Make for String {
    fn make(random: &mut Random<'_>) -> Self {
        random.text()
    }
}

impl<T: Make> Make for Option<T> {
    fn make(random: &mut Random<'_>) -> Self {
        (random.count() > 0).then(|| T::make(random))
    }
}

impl<T: Make> Make for Vec<T> {
    fn make(random: &mut Random<'_>) -> Self {
        (0..random.count()).map(|_| T::make(random)).collect()
    }
}

/// Makes the keys first, and in order, so the values are made in the order in which they are written.
impl<K: Make + Ord, V: Make> Make for BTreeMap<K, V> {
    fn make(random: &mut Random<'_>) -> Self {
        let keys: BTreeSet<K> = Vec::<K>::make(random).into_iter().collect();
        keys.into_iter().map(|key| (key, V::make(random))).collect()
    }
}

impl<T: Make + Ord> Make for BTreeSet<T> {
    fn make(random: &mut Random<'_>) -> Self {
        Vec::<T>::make(random).into_iter().collect()
    }
}

impl<T: Make> Make for Box<T> {
    fn make(random: &mut Random<'_>) -> Self {
        Box::new(T::make(random))
    }
}

impl<T: Make, const N: usize> Make for [T; N] {
    fn make(random: &mut Random<'_>) -> Self {
        std::array::from_fn(|_| T::make(random))
    }
}

impl<A: Make, B: Make> Make for (A, B) {
    fn make(random: &mut Random<'_>) -> Self {
        (A::make(random), B::make(random))
    }
}

impl Make for Image {
    fn make(random: &mut Random<'_>) -> Self {
        let id = u64::make(random);
        let pixels = random.tensor(DType::F32, &[3, 2, 1]);
        let keys = BTreeSet::<String>::make(random);
        let few = |random: &mut Random<'_>| {
            (0..random.count()).map(|size| random.tensor(DType::U8, &[size])).collect()
        };
        Image { id, pixels, extras: keys.into_iter().map(|key| (key, few(random))).collect() }
    }
}

impl Make for Scalars {
    fn make(r: &mut Random<'_>) -> Self {
        Scalars {
            integers: (
                u8::make(r),
                u16::make(r),
                u32::make(r),
                u64::make(r),
                i8::make(r),
                i16::make(r),
                i32::make(r),
                i64::make(r),
            ),
            sizes: (usize::make(r), isize::make(r)),
            floats: <[f64; 2]>::make(r),
            single: f32::make(r),
            truth: bool::make(r),
            letter: r.text().chars().next().unwrap_or('x'),
            text: String::make(r),
            nothing: (),
            other: String::make(r),
            patience: Duration::new(u64::make(r), u32::make(r) % 1_000_000_000),
        }
    }
}

impl Make for Job {
    fn make(r: &mut Random<'_>) -> Self {
        Job {
            each_way: Vec::make(r),
            left_out: Option::make(r),
            absent: Option::make(r),
            tree: Tree::make(r),
            told: if bool::make(r) { Told::NotYet } else { Told::OneLine(String::make(r)) },
            here: 0,
        }
    }
}

impl Make for Way {
    fn make(r: &mut Random<'_>) -> Self {
        match r.below(4) {
            0 => Way::Unit,
            1 => Way::Newtype(u8::make(r)),
            2 => Way::Tuple(u8::make(r), Option::make(r)),
            _ => Way::Struct { deep: BTreeMap::make(r) },
        }
    }
}

impl Make for Tree {
    fn make(r: &mut Random<'_>) -> Self {
        Tree { value: i64::make(r), children: Vec::make(r) }
    }
}

impl Make for Level {
    fn make(r: &mut Random<'_>) -> Self {
        if bool::make(r) { Level::Low } else { Level::High }
    }
}

impl Make for Figure {
    fn make(r: &mut Random<'_>) -> Self {
        match r.below(3) {
            0 => Figure::Round(Circle { radius: f64::make(r) }),
            1 => Figure::Square { side: f32::make(r), level: Level::make(r) },
            _ => Figure::Nothing,
        }
    }
}

impl Make for Loose {
    fn make(r: &mut Random<'_>) -> Self {
        match r.below(4) {
            0 => Loose::Named { name: String::make(r), tensor: Box::new(r.tensor(DType::BF16, &[1, 2])) },
            1 => Loose::Both(u8::make(r), bool::make(r)),
            2 => Loose::Number(i64::make(r)),
            _ => Loose::Nothing,
        }
    }
}

impl Make for Expression {
    fn make(r: &mut Random<'_>) -> Self {
        match r.count() {
            0 => Expression::Leaf(u32::make(r)),
            1 => Expression::Call(Box::make(r)),
            _ => Expression::Add { left: Box::make(r), right: Box::make(r) },
        }
    }
}

impl Make for Function {
    fn make(r: &mut Random<'_>) -> Self {
        Function { name: String::make(r), body: Option::make(r) }
    }
}

impl Make for Everything {
    fn make(r: &mut Random<'_>) -> Self {
        Everything {
            stop: Stop,
            pair: Pair(u16::make(r), Option::make(r)),
            wrapped: Wrapped(i32::make(r)),
            figures: Vec::make(r),
            loose: Vec::make(r),
            expression: Expression::make(r),
            function: Function::make(r),
            raw: Vec::make(r),
            maybe_raw: Option::make(r),
            names: BTreeSet::make(r),
            levels: BTreeMap::make(r),
            nested: BTreeMap::make(r),
            tensor: r.tensor(DType::I16, &[2, 0]),
            maybe: bool::make(r).then(|| r.tensor(DType::I64, &[4])),
            unit: Empty(),
        }
    }
}
