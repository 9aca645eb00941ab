//! Workers whose actors are of Rust: those of loaders, and topics.
//!
//! Such a worker is a Python interpreter because the extension is a Python library, but it imports only the
//! extension: not the package, not the program's script, and no library. So it starts in milliseconds and
//! takes 4 MiB of its own, whatever the program imports.

use tensorpost_core::actor::WorkerProgram;

/// Starts without the package, and without the modules that an interpreter imports by default.
const PROGRAM: &str = "import sys, _imp
from importlib.machinery import ExtensionFileLoader, ModuleSpec
spec = ModuleSpec('tensorpost._native', ExtensionFileLoader('tensorpost._native', sys.argv[1]), origin=sys.argv[1])
native = _imp.create_dynamic(spec)
_imp.exec_dynamic(native)
native.run_worker()
sys.exit('this worker is started by its node')";

/// Returns the program of such a worker: the interpreter with the file of this extension.
pub(crate) fn worker(interpreter: &str, library: &str, environment: Vec<(String, String)>) -> WorkerProgram {
    WorkerProgram {
        path: interpreter.into(),
        arguments: ["-I", "-S", "-c", PROGRAM, library].map(str::to_owned).to_vec(),
        environment,
        remedy: "; its worker is the interpreter of this program, without the package (its own words are on stderr)",
    }
}
