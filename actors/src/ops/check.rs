//! Comparison of a device's results with those of the host's functions, for tests and for actors that are
//! told to check. Every function blocks until the device's result is there.

use std::fmt::Debug;

use tensorpost::prelude::*;

use super::{OpError, read_stats};
use crate::image::stats::Stats;

/// Checks that the floats of `found` are `wanted`, each within `tolerance`; NaN agrees with NaN. Returns the
/// largest difference.
///
/// # Errors
/// [`OpError::Differs`] with the first element that is off; [`OpError::Shape`] for another number of
/// elements; data that will never be there. `what` names the result in the error.
pub fn floats(
    stream: &DeviceStream,
    what: &str,
    found: &Tensor,
    wanted: &[f32],
    tolerance: f32,
) -> Result<f32, OpError> {
    let found = download::<f32>(stream, found, wanted.len())?;
    let mut largest = 0.0_f32;
    for (at, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
        let difference = if found == wanted || (found.is_nan() && wanted.is_nan()) {
            0.0 // two infinities, which have no difference, are equal too
        } else {
            (found - wanted).abs()
        };
        // Compare in this direction, because a NaN is within nothing.
        let is_within = difference <= tolerance;
        if !is_within {
            return Err(differs(what, at, f64::from(found), f64::from(wanted), f64::from(tolerance)));
        }
        largest = largest.max(difference);
    }
    Ok(largest)
}

/// Checks that the bytes of `found` are `wanted`, each within `tolerance` steps. Returns the largest
/// difference.
///
/// # Errors
/// As [`floats`].
pub fn bytes(
    stream: &DeviceStream,
    what: &str,
    found: &Tensor,
    wanted: &[u8],
    tolerance: u8,
) -> Result<u8, OpError> {
    let found = download::<u8>(stream, found, wanted.len())?;
    let mut largest = 0;
    for (at, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
        let difference = found.abs_diff(wanted);
        if difference > tolerance {
            return Err(differs(what, at, f64::from(found), f64::from(wanted), f64::from(tolerance)));
        }
        largest = largest.max(difference);
    }
    Ok(largest)
}

/// Checks that a summary is that of `values`, in the sense of [`Stats::agrees`].
///
/// # Errors
/// [`OpError::Differs`] with the number of the word that is off; data that will never be there.
pub fn summary(
    stream: &DeviceStream,
    what: &str,
    summary: &Tensor,
    values: &[f32],
) -> Result<Stats, OpError> {
    let (found, wanted) = (read_stats(stream, summary)?, Stats::of(values));
    if found.agrees(&wanted) {
        return Ok(found);
    }
    let numbers = |stats: &Stats| {
        let Stats { count, non_finite, min, max, mean, std, checksum } = *stats;
        [count as f64, non_finite as f64, f64::from(min), f64::from(max), mean, std, checksum as f64]
    };
    let (found, wanted) = (numbers(&found), numbers(&wanted));
    // Report the first word that differs; where rounding hides it, the checksum.
    let at = (0..7).find(|&at| found[at] != wanted[at] && !found[at].is_nan()).unwrap_or(6);
    Err(differs(what, at, found[at], wanted[at], crate::image::stats::TOLERANCE))
}

fn download<T: Element + Debug>(
    stream: &DeviceStream,
    tensor: &Tensor,
    wanted: usize,
) -> Result<Vec<T>, OpError> {
    if tensor.len() != wanted {
        return Err(super::wrong("the result to check", tensor.shape(), &format!("{wanted} elements")));
    }
    Ok(stream.download(tensor)?)
}

fn differs(what: &str, at: usize, found: f64, wanted: f64, tolerance: f64) -> OpError {
    OpError::Differs { what: what.to_owned(), at, found, wanted, tolerance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_is_named() {
        let node = Node::builder().start().expect("a node");
        let stream = node.host_stream().expect("the host");
        let values =
            stream.from_slice(&[4], &[1.0_f32, f32::NAN, f32::INFINITY, -3.0]).expect("room").freeze();
        let same = [1.0, f32::NAN, f32::INFINITY, -3.0];
        assert_eq!(floats(&stream, "it", &values, &same, 0.0).expect("the same"), 0.0);
        assert_eq!(
            floats(&stream, "it", &values, &[1.5, f32::NAN, f32::INFINITY, -3.0], 0.5).expect("near"),
            0.5
        );
        for (at, wanted) in [(0, [2.0, f32::NAN, f32::INFINITY, -3.0]), (1, [1.0, 0.0, f32::INFINITY, -3.0])]
        {
            let error = floats(&stream, "it", &values, &wanted, 0.5).expect_err("off");
            assert!(matches!(error, OpError::Differs { at: found, .. } if found == at), "{error}");
        }
        assert!(matches!(floats(&stream, "it", &values, &[1.0], 0.0), Err(OpError::Shape { .. })));

        let gray = stream.from_slice(&[2], &[7_u8, 9]).expect("room").freeze();
        assert_eq!(bytes(&stream, "it", &gray, &[8, 9], 1).expect("near"), 1);
        assert!(matches!(bytes(&stream, "it", &gray, &[8, 9], 0), Err(OpError::Differs { at: 0, .. })));

        let words = super::super::stats(&stream, &values).expect("measured");
        summary(&stream, "it", &words, &same).expect("the same");
        let error = summary(&stream, "it", &words, &[1.0, f32::NAN, f32::INFINITY, -4.0]).expect_err("off");
        assert!(matches!(error, OpError::Differs { at: 2, .. }), "{error}");
    }
}
