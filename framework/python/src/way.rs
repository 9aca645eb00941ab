//! How messages of a class are sent: the plan by which they are written, their key, and the plan by which the
//! reply is read.
//!
//! The package finds it out once for each class, and keeps it in the class (`tensorpost._actor`). To look it
//! up there takes a call of Python for each message; so those of the classes that were sent lately are kept
//! here, by the class.
//!
//! **Locks.** One, for as long as it takes to look. Nothing of Python's is called or dropped under it.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::plan::Plan;

/// Classes that are kept at a time, each at the place that its address says. A class is kept alive by that.
const KEPT: usize = 32;

/// See the module.
pub(crate) struct Way {
    class: Py<PyType>,
    pub(crate) plan: Py<Plan>,
    pub(crate) key: u64,
    pub(crate) reply: Py<Plan>,
}

static WAYS: Mutex<[Option<Arc<Way>>; KEPT]> = Mutex::new([const { None }; KEPT]);

/// Objects are 16 bytes apart at least, and classes more.
fn place_of(class: &Bound<'_, PyType>) -> usize {
    let address = class.as_ptr().addr() as u64 >> 4;
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KEPT.ilog2())) as usize
}

impl Way {
    /// The way of a message of this class.
    ///
    /// # Errors
    /// The class is none of a message.
    pub(crate) fn of(message: &Bound<'_, PyAny>) -> PyResult<Arc<Way>> {
        let class = message.get_type();
        let place = place_of(&class);
        // The class is alive, and so is the one that is kept: where the addresses are the same, the classes
        // are.
        match &WAYS.lock()[place] {
            Some(way) if way.class.is(&class) => return Ok(Arc::clone(way)),
            _ => {}
        }
        Self::look_up(class, place)
    }

    #[cold]
    fn look_up(class: Bound<'_, PyType>, place: usize) -> PyResult<Arc<Way>> {
        let way = class.py().import("tensorpost._actor")?.call_method1("_way_of", (&class,))?;
        let (plan, key, reply) = way.extract()?;
        let way = Arc::new(Way { class: class.unbind(), plan, key, reply });
        // Behind the lock: what goes with a class is anybody's.
        let before = WAYS.lock()[place].replace(Arc::clone(&way));
        drop(before);
        Ok(way)
    }
}
