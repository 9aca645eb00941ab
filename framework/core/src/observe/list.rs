//! Lists from other processes, of which only the elements that can be shown are kept (MBX-2).
//!
//! Two bytes of a message can be an element of a hundred, and a message of 8 MiB can hold a list of which
//! only 256 elements count. So a list with a bound is cut while it is read, and not afterwards.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Reads a list and keeps the first `MOST` of its elements.
pub(crate) fn at_most<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct First<const MOST: usize, T>(PhantomData<fn() -> T>);

    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for First<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() < MOST {
                match list.next_element()? {
                    Some(element) => kept.push(element),
                    None => return Ok(kept),
                }
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }

    from.deserialize_seq(First::<MOST, T>(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Listed {
        #[serde(deserialize_with = "at_most::<3, _, _>")]
        of: Vec<(String, String)>,
        behind: u8,
    }

    #[test]
    fn what_is_more_is_read_over() {
        for count in [0, 2, 3, 4, 1000] {
            let all = (vec![("a", "b"); count], 7);
            let Listed { of, behind } = rmp_serde::from_slice(&rmp_serde::to_vec(&all).unwrap()).unwrap();
            assert_eq!((of.len(), behind), (count.min(3), 7));
        }
        // The elements that are not kept must be well-formed all the same.
        assert!(rmp_serde::from_slice::<Listed>(&[0x92, 0xdd, 0, 0, 1, 0, 0x92, 0xa0, 0xa0]).is_err());
    }
}
