//! Checks a MessagePack body before serde decodes it: that it is one value, with nothing behind it, and not
//! nested too deeply.
//!
//! Decoding recurses, so a body from a peer could overflow the stack by its nesting; this walk does not
//! recurse. The format is that of <https://github.com/msgpack/msgpack/blob/master/spec.md>.

use smallvec::SmallVec;

use crate::limits::MAX_NESTING;

/// The reason why a body is not one value of bounded depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NestingError {
    /// The body ends in the middle of a value.
    #[error("the body ends in the middle of a value, at byte {at}")]
    CutShort {
        /// Offset of the end.
        at: usize,
    },
    /// Bytes follow the value.
    #[error("{bytes} bytes follow the value")]
    Trailing {
        /// The number of bytes.
        bytes: usize,
    },
    /// The body has more containers inside each other than are allowed.
    #[error("nested deeper than {MAX_NESTING} containers; flatten the type, or put the deep part into bytes")]
    TooDeep,
    /// The body has the one byte that MessagePack does not use.
    #[error("byte 0xc1 at {at} is no MessagePack")]
    NoSuchType {
        /// The offset of the byte.
        at: usize,
    },
}

/// Checks that `body` is exactly one MessagePack value, nested at most [`MAX_NESTING`] deep. The empty body
/// is no value.
///
/// # Errors
/// See [`NestingError`].
pub fn check(body: &[u8]) -> Result<(), NestingError> {
    // Nearly all bodies pass here. The other check finds the error of one that does not.
    if is_one_value_of_few(body, MAX_NESTING) { Ok(()) } else { check_many(body) }
}

/// Returns whether the body is one value with at most `most` containers. That many cannot be nested more
/// deeply than `most`, whatever their arrangement.
fn is_one_value_of_few(body: &[u8], most: usize) -> bool {
    // The values still to come: a container adds at most 2^33, so the sum cannot overflow.
    let (mut left, mut containers, mut at) = (1_u64, 0, 0_usize);
    while left > 0 {
        let Ok((skip, children)) = value(body, at) else { return false };
        at = at.saturating_add(skip);
        containers += usize::from(children > 0);
        if at > body.len() || containers > most {
            return false;
        }
        left = left - 1 + children;
    }
    at == body.len()
}

/// As [`check`], for any body.
fn check_many(body: &[u8]) -> Result<(), NestingError> {
    // The values still to come in this container, and in those around it.
    let mut left = 1_u64;
    let mut around = SmallVec::<[u64; 16]>::new();
    let mut at = 0;
    loop {
        while left == 0 {
            left = match around.pop() {
                Some(left) => left,
                None if at == body.len() => return Ok(()),
                None => return Err(NestingError::Trailing { bytes: body.len() - at }),
            };
        }
        left -= 1;
        let (skip, children) = value(body, at)?;
        at = at
            .checked_add(skip)
            .filter(|at| *at <= body.len())
            .ok_or(NestingError::CutShort { at: body.len() })?;
        if children > 0 {
            if around.len() == MAX_NESTING {
                return Err(NestingError::TooDeep);
            }
            around.push(left);
            left = children;
        }
    }
}

/// Returns the bytes that the value at `at` takes without its children, and the number of its children.
#[inline(always)]
fn value(body: &[u8], at: usize) -> Result<(usize, u64), NestingError> {
    let cut = NestingError::CutShort { at: body.len() };
    let tag = *body.get(at).ok_or(cut)?;
    let length = |bytes: usize| -> Result<u64, NestingError> {
        let field = body.get(at + 1..at + 1 + bytes).ok_or(cut)?;
        Ok(field.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let leaf = |bytes: u64| usize::try_from(bytes).map(|bytes| (bytes, 0)).map_err(|_| cut);
    match tag {
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Ok((1, 0)),
        0x80..=0x8f => Ok((1, u64::from(tag & 0x0f) * 2)),
        0x90..=0x9f => Ok((1, u64::from(tag & 0x0f))),
        0xa0..=0xbf => leaf(1 + u64::from(tag & 0x1f)),
        0xc1 => Err(NestingError::NoSuchType { at }),
        0xc4 | 0xd9 => leaf(2 + length(1)?),
        0xc5 | 0xda => leaf(3 + length(2)?),
        0xc6 | 0xdb => leaf(5 + length(4)?),
        0xc7 => leaf(3 + length(1)?),
        0xc8 => leaf(4 + length(2)?),
        0xc9 => leaf(6 + length(4)?),
        0xcc | 0xd0 => Ok((2, 0)),
        0xcd | 0xd1 => Ok((3, 0)),
        0xca | 0xce | 0xd2 => Ok((5, 0)),
        0xcb | 0xcf | 0xd3 => Ok((9, 0)),
        0xd4..=0xd8 => leaf(2 + (1 << (tag - 0xd4))),
        0xdc => Ok((3, length(2)?)),
        0xdd => Ok((5, length(4)?)),
        0xde => Ok((3, length(2)? * 2)),
        0xdf => Ok((5, length(4)? * 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_rmp_serde_writes() {
        let value = (
            1_u64,
            "text",
            vec![Some(1.5_f32), None],
            std::collections::BTreeMap::from([("k", vec![0_u8; 300])]),
        );
        let body = rmp_serde::to_vec_named(&value).expect("encodes");
        assert_eq!(check(&body), Ok(()));
    }

    #[test]
    fn few_containers_are_one_value_where_many_are() {
        let bodies: [&[u8]; 9] = [
            &[],
            &[1],
            &[1, 2],
            &[0x80],
            &[0x81, 0xa1],
            &[0x91, 0x92, 1, 2],
            &[0x92, 0x90, 0xc1],
            &[0x92, 0x90, 0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xdd, 0xff, 0xff, 0xff, 0xff, 1],
        ];
        for body in bodies {
            assert_eq!(is_one_value_of_few(body, MAX_NESTING), check_many(body).is_ok(), "{body:x?}");
        }
        assert!(!is_one_value_of_few(&[0x91, 0x92, 1, 2], 1), "one more than asked for");
        // There are many containers, and none inside another.
        let flat = [vec![0xdc, 0x03, 0xe8], [0x91, 0].repeat(1000)].concat();
        assert!(!is_one_value_of_few(&flat, MAX_NESTING));
        assert_eq!(check(&flat), Ok(()));
    }

    #[test]
    fn refuses_every_cut_and_every_trailing_byte() {
        let body = rmp_serde::to_vec_named(&(1_u8, "ab", [1_u32, 70_000])).expect("encodes");
        for end in 0..body.len() {
            assert!(matches!(check(&body[..end]), Err(NestingError::CutShort { .. })), "cut at {end}");
        }
        let longer = [body.as_slice(), &[0]].concat();
        assert_eq!(check(&longer), Err(NestingError::Trailing { bytes: 1 }));
    }

    #[test]
    fn refuses_depth_beyond_the_limit_without_recursion() {
        let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
        assert_eq!(check(&nested(MAX_NESTING)), Ok(()));
        assert_eq!(check(&nested(MAX_NESTING + 1)), Err(NestingError::TooDeep));
        assert_eq!(check(&vec![0x91; 10_000_000]), Err(NestingError::TooDeep));
    }

    #[test]
    fn a_length_beyond_the_body_is_cut_short() {
        assert_eq!(check(&[0xdb, 0xff, 0xff, 0xff, 0xff]), Err(NestingError::CutShort { at: 5 }));
        assert_eq!(check(&[0xdd, 0xff, 0xff, 0xff, 0xff]), Err(NestingError::CutShort { at: 5 }));
    }
}
