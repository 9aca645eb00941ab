//! NVRTC and cuBLAS, which kernels in CUDA C and parts of cudarc need. Loaded at run time, only for the
//! doctor: cudarc loads them for programs.

#![expect(unsafe_code, reason = "calls C libraries")]

use std::ffi::c_int;

use libloading::Library;
use serde::{Deserialize, Serialize};

/// The toolkit's libraries: each version as major and minor, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolkitFacts {
    pub(crate) nvrtc: Result<(i32, i32), String>,
    pub(crate) cublas: Result<(i32, i32), String>,
}

/// Loads both libraries and asks their versions.
pub(crate) fn facts() -> ToolkitFacts {
    ToolkitFacts {
        nvrtc: load("nvrtc").and_then(|library| nvrtc(&library)),
        cublas: load("cublas").and_then(|library| cublas(&library)),
    }
}

/// Loads a library by the names under which cudarc looks for it.
fn load(name: &str) -> Result<Library, String> {
    let names = ["", ".13", ".12", ".11"].map(|version| format!("lib{name}.so{version}"));
    // SAFETY: this runs the initialisers of NVIDIA's libraries, as a program that is linked to them does.
    let found = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
    found.ok_or_else(|| format!("none of {} was found", names.join(", ")))
}

fn nvrtc(library: &Library) -> Result<(i32, i32), String> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the signature is that of NVRTC's header; it writes two ints.
    let code = unsafe {
        let version = library.get::<Version>(b"nvrtcVersion\0").map_err(|error| error.to_string())?;
        version(&mut major, &mut minor)
    };
    if code == 0 { Ok((major, minor)) } else { Err(format!("nvrtcVersion failed with {code}")) }
}

fn cublas(library: &Library) -> Result<(i32, i32), String> {
    type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    let ask = |which: c_int| {
        let mut value = 0;
        // SAFETY: the signature is that of the library's header, with its enum as an int; it writes one int.
        let code = unsafe {
            let property =
                library.get::<Property>(b"cublasGetProperty\0").map_err(|error| error.to_string())?;
            property(which, &mut value)
        };
        if code == 0 { Ok(value) } else { Err(format!("cublasGetProperty failed with {code}")) }
    };
    Ok((ask(0)?, ask(1)?))
}
