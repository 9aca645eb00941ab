//! Takes a worker, or the keeper of an MPS daemon, over before its program's `main` begins.
//!
//! A worker is this program again, but never runs `main`. So a worker does only what its node says, no matter
//! what `main` contains, where it starts a node, or how many nodes it starts. The loader calls a list of
//! constructors before `main`, and this module has one in it. That constructor first calls those behind it in
//! the list, so that statics of C++ and registries of Rust exist, as when `main` begins. Then it runs the
//! worker, and the process ends with it.
//!
//! Only the list of the program itself counts. If this crate is part of a library that a program loads, such
//! as a module for Python, the first [`start`](super::NodeBuilder::start) of a node takes the worker over.
//! A program that is linked statically to a fixed address has no table of its list. There the first line of a
//! `main` with `#[tensorpost::main]` takes the worker over ([`at_the_latest`]), or else the first start. In a
//! `staticlib` the linker takes in the list's entry together with the code of `start`, which names it.

#![expect(unsafe_code, reason = "the loader's list of constructors is read and written")]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::program::opens;
use super::{mps, worker};
use crate::actor::Program;

type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// The entry in the list.
#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static ENTRY: Constructor = before_main;

/// The exit status after a panic of the main thread.
const EXIT_PANICKED: i32 = 101;

/// Names the entry, so that no linker leaves it out of a program that starts workers.
pub(super) fn is_linked() {
    std::hint::black_box(&raw const ENTRY);
}

/// Begins `main`: takes the process over, if it is a worker or a keeper that was not taken over before.
/// Otherwise returns.
pub fn at_the_latest() {
    is_linked();
    mps::run_if_keeper();
    let types = Program::default();
    worker::run_if_worker(&types, &opens(&types));
}

extern "C" fn before_main(count: c_int, arguments: *const *const c_char, environment: *const *const c_char) {
    // All other processes return here, after a look into the environment.
    let is_keeper = mps::is_keeper();
    if !is_keeper && !worker::may_be_taken_over() {
        return;
    }
    let Some(behind) = constructors_behind() else { return };
    let socket = if is_keeper { None } else { worker::take_over() };
    if !is_keeper && socket.is_none() {
        return;
    }
    for constructor in behind {
        constructor(count, arguments, environment);
    }
    // SAFETY: Rust's own runtime does the same before `main`; no other thread exists that could wait for a
    // signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // No panic may leave a function of C; the hook has reported the panic.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        if let Some(socket) = socket {
            let types = Program::default();
            worker::run(socket, &types, &opens(&types));
        }
        mps::keep_until_end();
    }));
    drop(ended);
    std::process::exit(EXIT_PANICKED)
}

/// An entry of the table that tells the loader about a program.
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

const INIT_ARRAY: usize = 25;
const INIT_ARRAY_BYTES: usize = 27;

/// Returns the constructors of this program that come behind this module's; `None` if it is not in the
/// program's list.
fn constructors_behind() -> Option<&'static [Constructor]> {
    let mut list: (usize, usize) = (0, 0);
    // SAFETY: only this call calls `look`, with the pointer to `list`.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut list).cast()) };
    let (start, bytes) = list;
    if start == 0 {
        return None;
    }
    // SAFETY: the loader calls these functions, in this order, and has relocated them: it is calling one. A
    // word in the list may be 0 or -1 in old programs, and is no function then. So they are read as words,
    // and checked below.
    let words = unsafe { std::slice::from_raw_parts(start as *const usize, bytes / size_of::<usize>()) };
    let at = words.iter().position(|word| *word == before_main as Constructor as usize)?;
    let behind = &words[at + 1..];
    if behind.iter().any(|word| matches!(*word, 0 | usize::MAX)) {
        return None;
    }
    // SAFETY: each is the address of a function that the loader would call next, with these arguments.
    Some(unsafe { std::slice::from_raw_parts(behind.as_ptr().cast::<Constructor>(), behind.len()) })
}

/// Notes the list of constructors of the first object, which is the program itself.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
    // SAFETY: the loader passes the description of a loaded object, with its headers.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    // SAFETY: `constructors_behind` passes this pointer, and waits.
    let list = unsafe { &mut *list.cast::<(usize, usize)>() };
    if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) {
        let mut entry = (base + header.p_vaddr as usize) as *const Dynamic;
        // SAFETY: the table is mapped, and an entry with the tag 0 ends it.
        while let Dynamic { tag: tag @ 1.., value } = unsafe { &*entry } {
            match *tag {
                INIT_ARRAY => list.0 = base + value,
                INIT_ARRAY_BYTES => list.1 = *value,
                _ => {}
            }
            // SAFETY: there is one more entry, because the loop ends at the entry with the tag 0.
            entry = unsafe { entry.add(1) };
        }
    }
    1
}
