//! Closures by name. Closures do not travel. A worker is this program again and runs the same `main` up to the start of
//! the node, so by then it has made the same pipelines and kept the same closures here; only their names travel.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

/// Kept by name; each is an `Arc<F>` of the type that [`find`] is asked for.
static RETAINED: LazyLock<Mutex<HashMap<String, Box<dyn Any + Send>>>> = LazyLock::new(Mutex::default);

/// Keeps a closure, in the place of one that had the name before.
pub(super) fn keep<F: ?Sized + Send + Sync + 'static>(name: &str, closure: Arc<F>) {
    let before = RETAINED.lock().insert(name.to_owned(), Box::new(closure));
    // Outside of the lock: what it captured may do anything when it drops.
    drop(before);
}

/// The closure with this name and type.
pub(super) fn find<F: ?Sized + Send + Sync + 'static>(name: &str) -> Result<Arc<F>, UnknownClosure> {
    let retained = RETAINED.lock();
    let found = retained.get(name).and_then(|retained| retained.downcast_ref::<Arc<F>>());
    found.cloned().ok_or_else(|| UnknownClosure(name.to_owned()))
}

/// The worker has not made the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this worker does not know the closure `{0}`: a pipeline with closures must be written down in every process, so \
     write it down before the node starts; or use stages instead of closures"
)]
pub(super) struct UnknownClosure(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_is_found_by_name_and_type() {
        type Twice = dyn Fn(u32) -> u32 + Send + Sync;
        keep::<Twice>("closures/twice", Arc::new(|x| 2 * x));
        assert_eq!(find::<Twice>("closures/twice").unwrap()(3), 6);
        assert!(find::<dyn Fn(u64) -> u64 + Send + Sync>("closures/twice").is_err());
        let error = find::<Twice>("closures/thrice").err().unwrap().to_string();
        assert!(error.contains("closures/thrice"), "{error}");
    }
}
