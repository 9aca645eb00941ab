//! Takes a worker over before its program's `main` begins, and so the keeper of an MPS daemon.
//!
//! A worker is this program again, and `main` is not for it: whatever is written there, wherever a node is
//! started, and however many there are, a worker does what its node says and nothing else. The loader calls a
//! list of constructors before `main`, and this module has one in it. That one first calls those behind it in
//! the list: statics of C++ and registries of Rust are there then, as they are when `main` begins. Then it
//! runs the worker, and the process ends with it.
//!
//! Only the list of the program itself counts. Where this crate is part of a library that a program loads,
//! such as a module for Python, the first [`start`](super::NodeBuilder::start) of a node takes the worker
//! over.

#![expect(unsafe_code, reason = "the loader's list of constructors is read and written")]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::builder::opens;
use super::{mps, worker};
use crate::actor::Program;

type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// The entry in the list.
#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static ENTRY: Constructor = before_main;

/// The status of a main thread that panicked.
const EXIT_PANICKED: i32 = 101;

/// Names the entry, so that no linker leaves it out of a program that starts workers.
pub fn is_linked() {
    std::hint::black_box(&raw const ENTRY);
}

extern "C" fn before_main(count: c_int, arguments: *const *const c_char, environment: *const *const c_char) {
    // All other processes end here: a look into the environment.
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
    // SAFETY: this is what Rust's own beginning does before `main`; no other thread is there that could wait
    // for a signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // No panic may leave a function of C; the hook has told of one.
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

/// The constructors of this program that come behind the one here; none if the program has it not in its
/// list.
fn constructors_behind() -> Option<&'static [Constructor]> {
    let mut list: (usize, usize) = (0, 0);
    // SAFETY: `look` is called by this call alone, with the pointer to `list`.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut list).cast()) };
    let (start, bytes) = list;
    if start == 0 {
        return None;
    }
    // SAFETY: the loader calls these functions, in this order, and has relocated them: it is calling one. A
    // word in the list may be 0 or -1 in old programs, which is no function; so they are words until one is
    // known to be behind a function.
    let words = unsafe { std::slice::from_raw_parts(start as *const usize, bytes / size_of::<usize>()) };
    let at = words.iter().position(|word| *word == before_main as Constructor as usize)?;
    let behind = &words[at + 1..];
    if behind.iter().any(|word| matches!(*word, 0 | usize::MAX)) {
        return None;
    }
    // SAFETY: each is the address of a function that the loader would call next, with these arguments.
    Some(unsafe { std::slice::from_raw_parts(behind.as_ptr().cast::<Constructor>(), behind.len()) })
}

/// Notes the list of constructors of the first object, which is the program.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
    // SAFETY: the loader gives a description of an object that is loaded, with its headers.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    // SAFETY: `constructors_behind` gives this pointer, and waits.
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
            // SAFETY: there is one more, or the loop has ended.
            entry = unsafe { entry.add(1) };
        }
    }
    1
}
