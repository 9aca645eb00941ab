//! The actor types that a program can spawn, found without a list that somebody writes.
//!
//! A worker is told a type by its name and has to find the code for it. Each call of
//! [`Node::spawn`](crate::node::Node::spawn) for a type, whether or not it is ever made, leaves the address of a function
//! in a section of the program: `link` does, with the assembler's directives and no instruction. The linker puts all of
//! them side by side. Node and worker are one program, so both find the same functions there; what a worker is asked to
//! start is looked up by name among them, and no address travels.
//!
//! On other architectures than these two, and under Miri, there is no section: there a program names its types with
//! [`NodeBuilder::actor`](crate::node::NodeBuilder::actor).

#![expect(
    unsafe_code,
    reason = "a section of the program is written by the assembler and read by its symbols"
)]

use super::RemoteActor;
use super::host::Types;

/// Adds a type to a table.
type Add = fn(&mut Types);

/// Makes `A` a type that this program can start in a worker.
// A function of its own in the program, for the linker's sake.
#[inline(never)]
pub(crate) fn link<A: RemoteActor>() {
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    // SAFETY: there are no instructions here. The directives leave 8 aligned bytes in a section that only `add_all` reads:
    // the address of a function of type `Add`. By "o" the linker keeps them where it keeps the code of this function, and
    // drops them with it.
    unsafe {
        std::arch::asm!(
            ".pushsection tensorpost_actors, \"awo\", @progbits, {}",
            ".balign 8",
            ".8byte {}",
            ".popsection",
            sym link::<A>,
            sym add::<A>,
            options(nomem, nostack, preserves_flags)
        );
    }
}

#[cfg_attr(
    not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))),
    expect(dead_code, reason = "there is no section on this architecture")
)]
fn add<A: RemoteActor>(types: &mut Types) {
    types.link::<A>();
}

/// Adds all linked types to a table. One may come several times.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#[inline(never)]
pub(super) fn add_all(types: &mut Types) {
    unsafe extern "C" {
        #[link_name = "__start_tensorpost_actors"]
        static START: [usize; 0];
        #[link_name = "__stop_tensorpost_actors"]
        static STOP: [usize; 0];
    }
    // SAFETY: as in `link`, with a zero: without one entry the linker would not know the two symbols.
    unsafe {
        std::arch::asm!(
            ".pushsection tensorpost_actors, \"awo\", @progbits, {}",
            ".balign 8",
            ".8byte 0",
            ".popsection",
            sym add_all,
            options(nomem, nostack, preserves_flags)
        );
    }
    let (start, stop) = ((&raw const START).cast::<usize>(), (&raw const STOP).cast::<usize>());
    let entries = (stop.addr() - start.addr()) / size_of::<usize>();
    for at in 0..entries {
        // SAFETY: the linker defines the symbols as the ends of the section, which is mapped for as long as this code is,
        // and holds aligned words only.
        let entry = unsafe { start.add(at).read() };
        if entry != 0 {
            // SAFETY: `link` is the only one that writes an entry other than zero, always the address of an `add`. It has
            // this type, and one compiler compiled all of the program.
            let add = unsafe { std::mem::transmute::<usize, Add>(entry) };
            add(types);
        }
    }
}

/// There is no section on this architecture.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(super) fn add_all(_: &mut Types) {}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::host::Program;
    use super::super::{Env, Handles};
    use super::*;

    struct Made<T>(T);

    impl<T: Unpin + 'static> actix::Actor for Made<T> {
        type Context = actix::Context<Self>;
    }

    impl<T: Unpin + 'static> RemoteActor for Made<T> {
        type Args = ();

        fn create((): (), _: &Env) -> anyhow::Result<Self> {
            anyhow::bail!("it is never made")
        }

        fn handles(_: &mut Handles<Self>) {}
    }

    fn never_called<T: Unpin + 'static>() {
        link::<Made<T>>();
    }

    #[test]
    fn a_type_is_known_where_a_program_could_spawn_it() {
        std::hint::black_box([never_called::<u8> as fn(), never_called::<Vec<u8>> as fn()]);
        let program = Program::of_this_program();
        assert!(program.knows::<Made<u8>>() && program.knows::<Made<Vec<u8>>>());
        assert!(!program.knows::<Made<u16>>());
    }

    #[test]
    fn of_two_types_with_one_path_only_the_one_that_was_added_is_known() {
        // A block has no name in a path, so the two are called the same.
        macro_rules! same {
            () => {{
                struct Same;
                (never_called::<Same> as fn(), Program::knows::<Made<Same>>, Program::register::<Made<Same>>)
            }};
        }
        type Knows = fn(&Program) -> bool;
        type Register = fn(&mut Program);
        let same: [(fn(), Knows, Register); 2] = [same!(), same!()];
        std::hint::black_box(same);
        let mut program = Program::of_this_program();
        let [(_, knows_first, add_first), (_, knows_second, _)] = same;
        assert!(!knows_first(&program) && !knows_second(&program));
        add_first(&mut program);
        assert!(knows_first(&program) && !knows_second(&program));
    }
}
