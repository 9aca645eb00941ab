//! Finds the code that a program can start in its workers, types of actors and closures, without a list that
//! somebody writes.
//!
//! A worker is told which code it is to run, and has to find it. Each call of
//! [`Node::spawn`](crate::node::Node::spawn) for a type, and each [`Code`](super::code::Code) of a closure,
//! whether or not it is ever made, leaves the address of a function in a section of the program: `link` does,
//! with the assembler's directives and no instruction. The linker puts all of them side by side. Node and
//! worker are one program file, so both find the same functions there; what a worker is asked to start is
//! looked up by its [key](key_of) among them, and no address travels.

#![expect(
    unsafe_code,
    reason = "a section of the program is written by the assembler and read by its symbols"
)]

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use super::RemoteActor;
use super::host::ActorType;

/// The code of this program, by keys.
static TABLE: LazyLock<Table> = LazyLock::new(Table::of_this_program);

/// See [`TABLE`].
#[derive(Default)]
pub(crate) struct Table {
    pub(super) types: HashMap<u64, ActorType>,
    /// The key of the only type with a path; none where several have it, as two in blocks of one function.
    pub(super) by_path: HashMap<&'static str, Option<u64>>,
    /// Function pointers of closures; each caller knows the type of its own.
    pub(super) code: HashMap<u64, Box<dyn Any + Send + Sync>>,
}

/// Code that other processes of the program can look up.
pub(crate) trait Linked {
    /// Adds it to the table, where it may be already.
    fn add(table: &mut Table);
}

impl<A: RemoteActor> Linked for A {
    fn add(table: &mut Table) {
        table.add_type::<A>();
    }
}

/// The same number for a type in all processes of one program file, and another one for each type.
pub(crate) fn key_of<T: ?Sized + 'static>() -> u64 {
    // SipHash with fixed keys, of what the compiler made of the type's name, crate and arguments.
    let mut hasher = DefaultHasher::new();
    TypeId::of::<T>().hash(&mut hasher);
    hasher.finish()
}

/// Makes `L` something that this program can start in a worker.
// A function of its own in the program, for the linker's sake.
#[inline(never)]
pub(crate) fn link<L: Linked>() {
    #[cfg(not(miri))]
    // SAFETY: there are no instructions here. The directives leave 8 aligned bytes in a section that only
    // `of_this_program` reads: the address of a function of type `fn(&mut Table)`. By "o" the linker keeps
    // them where it keeps the code of this function, and drops them with it.
    unsafe {
        std::arch::asm!(
            ".pushsection tensorpost_linked, \"awo\", @progbits, {}",
            ".balign 8",
            ".8byte {}",
            ".popsection",
            sym link::<L>,
            sym L::add,
            options(nomem, nostack, preserves_flags)
        );
    }
}

impl Table {
    /// The table of this program.
    pub(super) fn get() -> &'static Self {
        &TABLE
    }

    fn add_type<A: RemoteActor>(&mut self) {
        let key = key_of::<A>();
        if self.types.insert(key, ActorType::of::<A>()).is_none() {
            let only = self.by_path.entry(std::any::type_name::<A>()).or_insert(Some(key));
            *only = only.filter(|only| *only == key);
        }
    }

    /// Under Miri a program has no other processes, and no section.
    #[cfg(miri)]
    fn of_this_program() -> Self {
        Table::default()
    }

    #[cfg(not(miri))]
    #[inline(never)]
    fn of_this_program() -> Self {
        unsafe extern "C" {
            #[link_name = "__start_tensorpost_linked"]
            static START: [usize; 0];
            #[link_name = "__stop_tensorpost_linked"]
            static STOP: [usize; 0];
        }
        // SAFETY: as in `link`, with a zero: without one entry the linker would not know the two symbols.
        unsafe {
            std::arch::asm!(
                ".pushsection tensorpost_linked, \"awo\", @progbits, {}",
                ".balign 8",
                ".8byte 0",
                ".popsection",
                sym Table::of_this_program,
                options(nomem, nostack, preserves_flags)
            );
        }
        let mut table = Table::default();
        let (start, stop) = ((&raw const START).cast::<usize>(), (&raw const STOP).cast::<usize>());
        let entries = (stop.addr() - start.addr()) / size_of::<usize>();
        for at in 0..entries {
            // SAFETY: the linker defines the symbols as the ends of the section, which is mapped for as long
            // as this code is, and holds aligned words only.
            let entry = unsafe { start.add(at).read() };
            if entry != 0 {
                // SAFETY: `link` is the only one that writes an entry other than zero, always the address of
                // an `add`. It has this type, and one compiler compiled all of the program.
                let add = unsafe { std::mem::transmute::<usize, fn(&mut Table)>(entry) };
                add(&mut table);
            }
        }
        table
    }
}
