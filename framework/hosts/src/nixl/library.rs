//! The installed NIXL: `libnixl_capi.so`, loaded when a program asks for it. Only this file names its
//! symbols.
//!
//! The library is never unloaded, because UCX has threads and handlers of its own. Every return code is
//! checked. The signatures are those of `src/bindings/rust/wrapper.h` in NIXL 1.5.1. Earlier versions had a
//! `bool sorted` after the lists, which is passed and which later ones ignore. Versions before 0.6.1 cannot
//! be told the part of an agent, and are not used.

#![expect(unsafe_code, reason = "calls a C library")]

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;

use super::{Agent, MemoryPlace, Nixl, NixlError, Part, Region, blob};
use crate::limits::MAX_NIXL_METADATA;

/// Names the library, if the loader does not find it by itself.
const VARIABLE: &str = "TENSORPOST_NIXL";
const LIBRARY: &str = "libnixl_capi.so";

type Handle = *mut c_void;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 1;
const WRITE: c_int = 1;
const DRAM: c_int = 0;
const VRAM: c_int = 1;

/// How long a progress thread sleeps at most if nothing wakes it, in us. NIXL's default, 0, takes a whole
/// core.
const PROGRESS_DELAY: u64 = 1_000;
/// NIXL's default for a listen thread, which is not used here, in us.
const LISTEN_DELAY: u64 = 100_000;

/// `nixl_capi_agent_config_t`.
///
/// *An agent that writes has no progress thread.* Such a thread would ask to be woken by every copy. For that
/// UCX puts a host call behind each copy in the stream, and the next copy waits for it. 32 MiB from one H200
/// to another took 169 us with the thread, and 88 us without (`docs/log/2026-11-27-benchmarks.md`).
#[derive(Default)]
#[repr(C)]
struct Config {
    has_progress_thread: bool,
    has_listen_thread: bool,
    listen_port: c_int,
    thread_sync: c_int,
    workers: c_uint,
    /// How long the progress thread sleeps at most, in us.
    progress_delay: u64,
    listen_delay: u64,
    captures_telemetry: bool,
}

macro_rules! table {
    ($($name:ident($($arg:ty),* $(,)?);)*) => {
        struct Table {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Table {
            /// # Safety
            /// The library is NIXL's C interface, and stays loaded.
            unsafe fn load(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Table {
                    $($name: {
                        // SAFETY: the signature is that of its header; the rest is the caller's contract.
                        *unsafe { library.get(concat!("nixl_capi_", stringify!($name), "\0").as_bytes()) }?
                    },)*
                })
            }
        }
    };
}

table! {
    create_configured_agent(*const c_char, *const Config, *mut Handle);
    destroy_agent(Handle);
    get_plugin_params(Handle, *const c_char, *mut Handle, *mut Handle);
    destroy_mem_list(Handle);
    destroy_params(Handle);
    params_add(Handle, *const c_char, *const c_char);
    create_backend(Handle, *const c_char, Handle, *mut Handle);
    destroy_backend(Handle);
    create_reg_dlist(c_int, *mut Handle, bool);
    reg_dlist_add_desc(Handle, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist(Handle);
    register_mem(Handle, Handle, Handle);
    deregister_mem(Handle, Handle, Handle);
    get_local_md(Handle, *mut *mut c_void, *mut usize);
    load_remote_md(Handle, *const c_void, usize, *mut *mut c_char);
    invalidate_remote_md(Handle, *const c_char);
    create_xfer_dlist(c_int, *mut Handle, bool);
    xfer_dlist_add_desc(Handle, usize, usize, u64);
    destroy_xfer_dlist(Handle);
    create_xfer_req(Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle);
    post_xfer_req(Handle, Handle, Handle);
    get_xfer_status(Handle, Handle);
    release_xfer_req(Handle, Handle);
    destroy_xfer_req(Handle);
}

/// The loaded NIXL.
#[derive(Clone)]
pub struct Library {
    loaded: Arc<Loaded>,
    loopback: bool,
}

struct Loaded {
    table: Table,
    path: OsString,
    _library: ManuallyDrop<libloading::Library>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.loaded.path).finish()
    }
}

impl Library {
    /// Loads the library: from the path in the variable `TENSORPOST_NIXL`, else as the loader finds it.
    ///
    /// # Errors
    /// The library is not there, or is not NIXL's C interface.
    pub fn load() -> Result<Self, NixlError> {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        Self::load_from(&path.unwrap_or_else(|| LIBRARY.into()))
    }

    /// Loads the library from this path.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_from(path: &OsStr) -> Result<Self, NixlError> {
        let missing = |error: libloading::Error| NixlError::NoLibrary { why: error.to_string() };
        // SAFETY: the user who names the library trusts the code that it runs when it is loaded, as with any
        // program that the user starts.
        let library = unsafe { libloading::Library::new(path) }.map_err(missing)?;
        let library = ManuallyDrop::new(library);
        // SAFETY: it was loaded as NIXL's C interface, all of whose names are looked up, and it is never
        // unloaded.
        let table = unsafe { Table::load(&library) }.map_err(missing)?;
        let loaded = Arc::new(Loaded { table, path: path.to_owned(), _library: library });
        Ok(Library { loaded, loopback: false })
    }

    /// Restricts its agents to this machine's loopback interface (HOST-12). UCX listens on all interfaces
    /// otherwise.
    pub fn on_loopback(self) -> Self {
        Library { loopback: true, ..self }
    }
}

impl Nixl for Library {
    fn agent(&self, name: &str, part: Part) -> Result<Box<dyn Agent>, NixlError> {
        Ok(Box::new(Ucx::new(self.clone(), name, part)?))
    }
}

fn check(call: &'static str, status: c_int) -> Result<(), NixlError> {
    if status == SUCCESS { Ok(()) } else { Err(NixlError::Call { call, status }) }
}

fn c_string(text: &str) -> Result<CString, NixlError> {
    CString::new(text).map_err(|_| NixlError::Argument { what: "a name with a zero in it" })
}

/// Returns the kind of memory and the number of its device, as NIXL encodes them.
fn kind(place: MemoryPlace) -> (c_int, u64) {
    match place {
        MemoryPlace::Host => (DRAM, 0),
        MemoryPlace::Gpu(number) => (VRAM, number.into()),
    }
}

/// An agent with the back end UCX. One thread at a time uses its handles: the one that has this value.
struct Ucx {
    library: Library,
    agent: Handle,
    backend: Handle,
    /// The registered list, and its memory.
    memory: Option<(Handle, Region)>,
    other: Option<(CString, Region)>,
    writes: HashMap<u64, Handle>,
    /// Writes that were complete when they were posted.
    done: Vec<u64>,
    next: u64,
}

impl Ucx {
    fn new(library: Library, name: &str, part: Part) -> Result<Self, NixlError> {
        let name = c_string(name)?;
        let mut agent = ptr::null_mut();
        let config = Config {
            has_progress_thread: part == Part::Written,
            progress_delay: PROGRESS_DELAY,
            listen_delay: LISTEN_DELAY,
            ..Config::default()
        };
        // SAFETY: the name ends with a zero, the configuration is as its header has it, and the handle is
        // written to a place for it.
        let status =
            unsafe { (library.loaded.table.create_configured_agent)(name.as_ptr(), &config, &mut agent) };
        check("create_configured_agent", status)?;
        let (memory, other, backend) = (None, None, ptr::null_mut());
        let (writes, done) = (HashMap::new(), Vec::new());
        // From here on the agent is destroyed with this value.
        let mut ucx = Ucx { library, agent, backend, memory, other, writes, done, next: 0 };
        ucx.begin_ucx()?;
        Ok(ucx)
    }

    fn table(&self) -> &Table {
        &self.library.loaded.table
    }

    fn begin_ucx(&mut self) -> Result<(), NixlError> {
        let (mut kinds, mut params, mut backend) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let table = self.table();
        // SAFETY: the agent exists; the name ends with a zero; both handles are written to places for them.
        let status =
            unsafe { (table.get_plugin_params)(self.agent, c"UCX".as_ptr(), &mut kinds, &mut params) };
        check("get_plugin_params", status)?;
        let (config, on_loopback) = (c"engine_config".as_ptr(), c"NET_DEVICES=lo".as_ptr());
        let bounded = match self.library.loopback {
            // SAFETY: the parameters were just made, and both texts end with a zero.
            true => unsafe { (table.params_add)(params, config, on_loopback) },
            false => SUCCESS,
        };
        let status = match bounded {
            // SAFETY: as above.
            SUCCESS => unsafe { (table.create_backend)(self.agent, c"UCX".as_ptr(), params, &mut backend) },
            failed => failed,
        };
        // SAFETY: both were made above, and are not used any more.
        unsafe {
            (table.destroy_mem_list)(kinds);
            (table.destroy_params)(params);
        }
        check("params_add", bounded)?;
        check("create_backend", status)?;
        self.backend = backend;
        Ok(())
    }

    /// Makes a list of one range for a write.
    fn list(&self, memory: Region) -> Result<List<'_>, NixlError> {
        let ((kind, device), mut handle) = (kind(memory.place), ptr::null_mut());
        let (address, bytes) = (memory.address as usize, memory.bytes as usize);
        let table = self.table();
        // SAFETY: the handle is written to a place for it.
        check("create_xfer_dlist", unsafe { (table.create_xfer_dlist)(kind, &mut handle, false) })?;
        let list = List { table, handle };
        // SAFETY: the list exists; the rest are numbers, which NIXL compares with the registered memory when
        // a write is made of them.
        let status = unsafe { (table.xfer_dlist_add_desc)(handle, address, bytes, device) };
        check("xfer_dlist_add_desc", status)?;
        Ok(list)
    }

    /// Releases a write, which ends or is given up with this.
    fn release(&self, write: Handle) {
        let table = self.table();
        // SAFETY: the write belongs to this agent, and is in no map any more. If it cannot be released it is
        // not destroyed: the second call refuses that itself.
        unsafe {
            (table.release_xfer_req)(self.agent, write);
            (table.destroy_xfer_req)(write);
        }
    }
}

struct List<'a> {
    table: &'a Table,
    handle: Handle,
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made by this table, and NIXL has copied everything that a write needs of it.
        unsafe { (self.table.destroy_xfer_dlist)(self.handle) };
    }
}

impl Agent for Ucx {
    fn register(&mut self, memory: Region) -> Result<(), NixlError> {
        if self.memory.is_some() {
            return Err(NixlError::Argument { what: "a second arena of one agent" });
        }
        let ((kind, device), mut list) = (kind(memory.place), ptr::null_mut());
        let (address, bytes) = (memory.address as usize, memory.bytes as usize);
        let table = self.table();
        // SAFETY: the handle is written to a place for it.
        check("create_reg_dlist", unsafe { (table.create_reg_dlist)(kind, &mut list, false) })?;
        // SAFETY: the list exists, and there is no metadata beside the range.
        let added = unsafe { (table.reg_dlist_add_desc)(list, address, bytes, device, ptr::null(), 0) };
        let status = check("reg_dlist_add_desc", added).and_then(|()| {
            // SAFETY: agent and list exist; the memory outlives this value, as the trait demands.
            check("register_mem", unsafe { (table.register_mem)(self.agent, list, ptr::null_mut()) })
        });
        match status {
            Ok(()) => {
                self.memory = Some((list, memory));
                Ok(())
            }
            Err(error) => {
                // SAFETY: it was made above, and nothing else holds it.
                unsafe { (table.destroy_reg_dlist)(list) };
                Err(error)
            }
        }
    }

    fn metadata(&mut self) -> Result<Bytes, NixlError> {
        let (mut data, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: the agent exists, and both results are written to places for them.
        check("get_local_md", unsafe { (self.table().get_local_md)(self.agent, &mut data, &mut bytes) })?;
        if data.is_null() || bytes == 0 || bytes > MAX_NIXL_METADATA {
            // SAFETY: it came from `malloc`, or is null.
            unsafe { libc::free(data) };
            return Err(NixlError::Argument { what: "metadata that is empty or too long" });
        }
        // SAFETY: NIXL has written `bytes` bytes there, and nobody else has them.
        let metadata =
            Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) });
        // SAFETY: it came from `malloc`.
        unsafe { libc::free(data) };
        Ok(metadata)
    }

    fn connect(&mut self, name: &str, metadata: &[u8], memory: Region) -> Result<(), NixlError> {
        if self.other.is_some() {
            return Err(NixlError::Argument { what: "a second agent to write to" });
        }
        blob::check(metadata, name, memory.address, memory.bytes, memory.place != MemoryPlace::Host)?;
        let (expected, mut found) = (c_string(name)?, ptr::null_mut());
        let (data, bytes) = (metadata.as_ptr().cast::<c_void>(), metadata.len());
        // SAFETY: agent and bytes exist, and the name is written to a place for it.
        let status = unsafe { (self.table().load_remote_md)(self.agent, data, bytes, &mut found) };
        check("load_remote_md", status)?;
        // SAFETY: it is a string of NIXL's that ends with a zero, and belongs to this call.
        let is_right = !found.is_null() && unsafe { CStr::from_ptr(found) } == expected.as_c_str();
        // SAFETY: it came from `malloc`, or is null.
        unsafe { libc::free(found.cast()) };
        self.other = Some((expected, memory));
        if is_right { Ok(()) } else { Err(NixlError::Argument { what: "metadata of another agent" }) }
    }

    fn begin(&mut self, from: Region, to: Region) -> Result<u64, NixlError> {
        let (Some((_, own)), Some((name, other))) = (&self.memory, &self.other) else {
            return Err(NixlError::Argument { what: "a write before both ends are known" });
        };
        if !own.contains(&from) || !other.contains(&to) || from.bytes != to.bytes {
            return Err(NixlError::Argument { what: "a write beside an arena" });
        }
        let (table, mut write) = (self.table(), ptr::null_mut());
        let (local, remote) = (self.list(from)?, self.list(to)?);
        // SAFETY: agent, lists and name exist, and the handle is written to a place for it.
        let status = unsafe {
            let (from, to) = (local.handle, remote.handle);
            (table.create_xfer_req)(self.agent, WRITE, from, to, name.as_ptr(), &mut write, ptr::null_mut())
        };
        drop((local, remote));
        check("create_xfer_req", status)?;
        // SAFETY: it was made of ranges of memory that was registered here, and which lives until this value
        // is dropped.
        let status = unsafe { (table.post_xfer_req)(self.agent, write, ptr::null_mut()) };
        self.next += 1;
        match status {
            IN_PROGRESS => drop(self.writes.insert(self.next, write)),
            SUCCESS => {
                self.release(write);
                self.done.push(self.next);
            }
            status => {
                self.release(write);
                return Err(NixlError::Call { call: "post_xfer_req", status });
            }
        }
        Ok(self.next)
    }

    fn is_done(&mut self, write: u64) -> Result<bool, NixlError> {
        if let Some(at) = self.done.iter().position(|done| *done == write) {
            self.done.swap_remove(at);
            return Ok(true);
        }
        let Some(handle) = self.writes.get(&write).copied() else {
            return Err(NixlError::Argument { what: "a write that has ended" });
        };
        // SAFETY: agent and write exist.
        let status = unsafe { (self.table().get_xfer_status)(self.agent, handle) };
        if status == IN_PROGRESS {
            return Ok(false);
        }
        self.writes.remove(&write);
        self.release(handle);
        check("get_xfer_status", status).map(|()| true)
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        let writes: Vec<_> = self.writes.drain().map(|(_, write)| write).collect();
        writes.into_iter().for_each(|write| self.release(write));
        let table = &self.library.loaded.table;
        // SAFETY: each handle is this value's own, is not used afterwards, and goes before its agent. The
        // connections to the other agent go with its metadata.
        unsafe {
            if let Some((name, _)) = &self.other {
                (table.invalidate_remote_md)(self.agent, name.as_ptr());
            }
            if let Some((list, _)) = self.memory.take() {
                (table.deregister_mem)(self.agent, list, ptr::null_mut());
                (table.destroy_reg_dlist)(list);
            }
            if !self.backend.is_null() {
                (table.destroy_backend)(self.backend);
            }
            (table.destroy_agent)(self.agent);
        }
    }
}
