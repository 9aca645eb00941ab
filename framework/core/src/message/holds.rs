//! Whether values of a type can hold tensors at all. The derive finds it out.
//!
//! After a death, each message that stays in its process is searched for tensors whose data was lost
//! (DEATH-3). The search walks through the whole message. Most messages within a process are ticks and
//! numbers, for which the search is known to find nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Types whose values hold no tensor.
pub trait HoldsNoTensors {}

macro_rules! hold_none {
    ($($plain:ty),* ; $($of:ident<$($item:ident),+>),*) => {
        $(impl HoldsNoTensors for $plain {})*
        $(impl<$($item: HoldsNoTensors),+> HoldsNoTensors for $of<$($item),+> {})*
    };
}

hold_none!(
    (), bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, String, Duration;
    Option<T>, Vec<T>, Box<T>, Result<T, E>, BTreeMap<K, V>, HashMap<K, V>
);

impl<T: HoldsNoTensors, const N: usize> HoldsNoTensors for [T; N] {}
impl<T: HoldsNoTensors, U: HoldsNoTensors> HoldsNoTensors for (T, U) {}

/// `Probe::<T>::MAY_HOLD_TENSORS`, with [`Otherwise`] in scope, is false if `T` is known to hold no tensor.
#[derive(Debug)]
pub struct Probe<T>(std::marker::PhantomData<T>);

impl<T: HoldsNoTensors> Probe<T> {
    /// The type is known to hold none. This constant takes precedence over that of the trait, where it
    /// exists.
    pub const MAY_HOLD_TENSORS: bool = false;
}

/// The value for all other types, and for a type parameter that does not say.
pub trait Otherwise {
    /// Nothing is known.
    const MAY_HOLD_TENSORS: bool = true;
}

impl<T> Otherwise for Probe<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::GpuMessage;
    use crate::tensor::Tensor;
    use serde::{Deserialize, Serialize};
    use tensorpost_derive::GpuMessage;

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate, reply = Option<Tensor>)]
    enum Plain {
        Tick,
        Many(Vec<(String, [f32; 3])>),
        Timed { at: Option<std::time::Duration> },
    }

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate)]
    struct Held {
        number: u64,
        tensor: Vec<Option<Tensor>>,
    }

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate)]
    struct Generic<T> {
        value: T,
    }

    #[test]
    fn only_what_is_known_to_hold_none_is_said_to() {
        let of_messages = [Plain::MAY_HOLD_TENSORS, Held::MAY_HOLD_TENSORS, Generic::<u8>::MAY_HOLD_TENSORS];
        assert_eq!(of_messages, [false, true, true], "of a parameter nothing is known");
        assert_eq!([Plain::REPLY_MAY_HOLD_TENSORS, Held::REPLY_MAY_HOLD_TENSORS], [true, false]);
        assert_eq!([Probe::<Plain>::MAY_HOLD_TENSORS], [true], "nor of a type that is not listed");
    }
}
