//! Bounds the memory of the objects of a decoded value.
//!
//! One byte of a body can become an object of two hundred bytes. So the memory of a decoded value is bounded
//! by the length of its body only if it is counted, as `tensorpost_core` does for the types of Rust. The
//! sizes are those of CPython 3.10 to 3.13 on 64-bit machines, with the spare room of lists and tables, and
//! rather too large. Objects that a class's own code makes are not counted.

use tensorpost_core::limits::{DECODED_BASE, DECODED_PER_BYTE};

use crate::failure::{Failure, Result};

/// An object's header, with that of the garbage collector.
const HEAD: usize = 32;
const POINTER: usize = 8;
/// An object with attributes, without the attributes: CPython keeps room for thirty, even if a class has
/// fewer. The default of an attribute may be a list.
const INSTANCE: usize = 5 * HEAD;
const ATTRIBUTES: usize = 30;
const DEFAULT: usize = 64;
/// The largest int for which Python keeps one shared object, and the size of any other int in a body.
const KEPT_INT: i128 = 256;
const INT: usize = 32;

/// The memory that may still be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    left: usize,
    body: usize,
}

impl Meter {
    /// Makes the meter for a body of so many bytes.
    pub(crate) fn new(body: usize) -> Self {
        Meter { left: body.saturating_mul(DECODED_PER_BYTE).saturating_add(DECODED_BASE), body }
    }

    fn count(&mut self, bytes: usize) -> Result<()> {
        let left = self.left.checked_sub(bytes).ok_or_else(|| {
            let may = Meter::new(self.body).left;
            Failure::new(format!("its {} bytes would take more than {may} bytes of memory", self.body))
        })?;
        self.left = left;
        Ok(())
    }

    pub(crate) fn int(&mut self, value: i128) -> Result<()> {
        self.count(if (-5..=KEPT_INT).contains(&value) { 0 } else { INT })
    }

    pub(crate) fn float(&mut self) -> Result<()> {
        self.count(24)
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        // One wide character makes all of them wide.
        let wide = if text.is_ascii() { text.len() } else { 16 + 4 * text.chars().count() };
        self.count(2 * HEAD + wide)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.count(HEAD + POINTER + bytes.len())
    }

    /// Counts an empty list.
    pub(crate) fn list(&mut self) -> Result<()> {
        self.count(HEAD + 9 * POINTER)
    }

    /// Counts another item in a list that has so many.
    pub(crate) fn item(&mut self, before: usize) -> Result<()> {
        // A list grows by an eighth, and by at least four.
        self.count(if before.is_multiple_of(4) { 4 * POINTER + POINTER / 2 } else { 0 })
    }

    pub(crate) fn tuple(&mut self, items: usize) -> Result<()> {
        self.count(HEAD + 3 * POINTER + items.saturating_mul(POINTER))
    }

    /// Counts a dict with so many entries: its table grows threefold each time that two thirds are full, and
    /// it has indices.
    pub(crate) fn dict(&mut self, entries: usize) -> Result<()> {
        let slots = table(entries, |slots| 2 * slots / 3, 3);
        let index = if slots <= 128 { 1 } else { 4 };
        self.count(HEAD + 10 * POINTER + slots.saturating_mul(index + 16))
    }

    /// Counts a set with so many items: its table grows to four times its items each time that three fifths
    /// are full.
    pub(crate) fn set(&mut self, items: usize) -> Result<()> {
        let growth = if items > 50_000 { 2 } else { 4 };
        self.count(HEAD + 25 * POINTER + table(items, |slots| 3 * slots / 5, growth).saturating_mul(16))
    }

    /// Counts an object of a class with so many fields, of which so many are left to their defaults.
    pub(crate) fn object(&mut self, fields: usize, defaults: usize) -> Result<()> {
        self.count(INSTANCE + fields.max(ATTRIBUTES) * POINTER + defaults * DEFAULT)
    }

    /// Counts an address, or a tensor that was not made before.
    pub(crate) fn handle(&mut self) -> Result<()> {
        self.count(4 * HEAD)
    }
}

/// Returns the slots of a table that has grown to hold so many entries.
fn table(entries: usize, most: impl Fn(usize) -> usize, growth: usize) -> usize {
    let mut slots: usize = 8;
    while most(slots) < entries {
        // The table was as full as allowed when it grew.
        slots = most(slots)
            .saturating_mul(growth)
            .saturating_add(1)
            .checked_next_power_of_two()
            .unwrap_or(usize::MAX);
    }
    slots
}
