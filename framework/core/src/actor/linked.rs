//! Finds the code that a program can start in its workers, actor types and closures, without a list that
//! somebody writes.
//!
//! A worker is told which code to run, and has to find it. Each call of
//! [`Node::spawn`](crate::node::Node::spawn) for a type, and each [`Code`](super::code::Code) of a closure,
//! leaves the address of a function in a section of the program, whether or not it ever runs. `link` does
//! this, with the assembler's directives and no instruction. The linker puts all addresses side by side. Node
//! and worker are one program file, so both find the same functions there. A worker looks up the code by its
//! [key](key_of) among them, and no address travels.

#![expect(
    unsafe_code,
    reason = "a section of the program is written by the assembler and read by its symbols"
)]

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use super::RemoteActor;
use super::process_actors::ActorType;

/// This program's code, by key.
static TABLE: LazyLock<Table> = LazyLock::new(Table::of_this_program);

/// See [`TABLE`].
#[derive(Default)]
pub(crate) struct Table {
    pub(super) types: HashMap<u64, ActorType>,
    /// The key of the type with this path, or none if several types have it, as two in blocks of one function
    /// do.
    pub(super) by_path: HashMap<&'static str, Option<u64>>,
    /// Function pointers of closures; each caller knows the type of its own.
    pub(super) code: HashMap<u64, Box<dyn Any + Send + Sync>>,
}

/// Code that other processes of the program can look up.
pub(crate) trait Linked {
    /// Adds the code to the table, which may have it already.
    fn add(table: &mut Table);
}

impl<A: RemoteActor> Linked for A {
    fn add(table: &mut Table) {
        table.add_type::<A>();
    }
}

/// Returns a number for a type: the same in all processes of one program file, and another one for each type.
pub(crate) fn key_of<T: ?Sized + 'static>() -> u64 {
    // SipHash with fixed keys, over the compiler's id of the type's name, crate and arguments.
    let mut hasher = DefaultHasher::new();
    TypeId::of::<T>().hash(&mut hasher);
    hasher.finish()
}

/// Makes `L` startable in this program's workers.
// Never inlined: the linker keeps or drops the entry together with this function.
#[inline(never)]
pub(crate) fn link<L: Linked>() {
    #[cfg(not(miri))]
    // SAFETY: there are no instructions here. The directives leave 8 aligned bytes in a section that only
    // `of_this_program` reads: the address of a function of type `fn(&mut Table)`. Because of "o" the linker
    // keeps them wherever it keeps the code of this function, and drops them with it.
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
    /// Returns the table of this program.
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
            // SAFETY: the linker defines the symbols as the ends of the section. The section is mapped as
            // long as this code is, and holds aligned words only.
            let entry = unsafe { start.add(at).read() };
            if entry != 0 {
                // SAFETY: only `link` writes entries other than zero, and each is the address of an `add`.
                // That function has this type, and one compiler compiled all of the program.
                let add = unsafe { std::mem::transmute::<usize, fn(&mut Table)>(entry) };
                add(&mut table);
            }
        }
        table
    }
}
