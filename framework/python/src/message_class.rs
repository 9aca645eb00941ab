//! The way in which messages of a class are sent: the plan by which they are written, their key, and the plan
//! by which the reply is read.
//!
//! The package determines it once for each class, and keeps it in the class (`tensorpost._actor`). Looking it
//! up there takes a Python call for each message, so the ways of recently sent classes are cached here, by
//! class.
//!
//! **Locks.** One, for as long as a look takes. No Python code is called and no object is dropped under it.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::plan::Plan;

/// Classes that are cached at a time, each at the place that its address determines. A cached class stays
/// alive.
const KEPT: usize = 32;

/// See the module.
pub(crate) struct MessageClass {
    class: Py<PyType>,
    pub(crate) plan: Py<Plan>,
    pub(crate) key: u64,
    pub(crate) reply: Py<Plan>,
}

static WAYS: Mutex<[Option<Arc<MessageClass>>; KEPT]> = Mutex::new([const { None }; KEPT]);

/// Returns the place of a class. Objects are at least 16 bytes apart, and classes more.
fn place_of(class: &Bound<'_, PyType>) -> usize {
    let address = class.as_ptr().addr() as u64 >> 4;
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KEPT.ilog2())) as usize
}

impl MessageClass {
    /// Returns the way of messages of this message's class.
    ///
    /// # Errors
    /// The class is not that of a message.
    pub(crate) fn of(message: &Bound<'_, PyAny>) -> PyResult<Arc<MessageClass>> {
        let class = message.get_type();
        let place = place_of(&class);
        // Both the class and the cached class are alive: if their addresses are the same, so are the classes.
        match &WAYS.lock()[place] {
            Some(way) if way.class.is(&class) => return Ok(Arc::clone(way)),
            _ => {}
        }
        Self::look_up(class, place)
    }

    #[cold]
    fn look_up(class: Bound<'_, PyType>, place: usize) -> PyResult<Arc<MessageClass>> {
        let way = class.py().import("tensorpost._actor")?.call_method1("_way_of", (&class,))?;
        let (plan, key, reply) = way.extract()?;
        let way = Arc::new(MessageClass { class: class.unbind(), plan, key, reply });
        // Dropped after the lock is released: dropping a class may run any code.
        let before = WAYS.lock()[place].replace(Arc::clone(&way));
        drop(before);
        Ok(way)
    }
}
