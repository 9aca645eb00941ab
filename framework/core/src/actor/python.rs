//! An actor that is written in Python and started by a Rust program, in a worker that is a Python
//! interpreter.
//!
//! * This module only starts the interpreter. The actor itself, its messages and its failures belong to the
//!   package in `framework/python`, which registers under this type's name in its workers.
//! * Death, restarts and the end of the node are as for any worker.

use std::path::PathBuf;

use actix::{Actor, Context, Handler, MessageResult};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::address::goes_out_by;
use super::process_actors::WorkerProgram;
use super::{Env, Handles, RemoteActor};
use crate::clock::NodeNumber;
use crate::message::portable::Portable;
use crate::message::{GpuMessage, codec};

/// The environment variable that names the interpreter, if the program does not.
const VARIABLE: &str = "TENSORPOST_PYTHON";

/// An actor of a Python module, which can be [spawned](crate::node::Node::spawn) like one of Rust. Its worker
/// is an interpreter that has the package `tensorpost`, of the same version as this crate.
///
/// It takes and sends messages with `#[gpu_message(portable)]`; `@tp.message` classes are the same in Python.
/// Tensors in them are brought to its device. It refuses messages that it has no handler for.
///
/// ```no_run
/// use tensorpost::actor::Python;
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// #[gpu_message(portable, reply = f32)]
/// struct Mean {
///     #[tensor(dtype = f32)]
///     values: Tensor,
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// // `class Statistics` with `@tp.actor` in app/stages.py, and `def __init__(self, bias: float)`
/// let python = Python::actor("app.stages:Statistics").args((0.5,));
/// let statistics = node.spawn::<Python>(python).restart(Restart::on_failure(5)).start()?;
/// let values = node.host_stream()?.from_slice(&[2], &[1.0_f32, 2.0])?.freeze();
/// assert_eq!(node.block_on(statistics.ask(Mean { values }))?, 2.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    /// `module:Class`.
    actor: String,
    #[serde(skip)]
    interpreter: Interpreter,
    /// Whether its worker runs the program of the worker that asks for it, and not the interpreter.
    #[serde(skip)]
    is_like_asker: bool,
    /// Folders in which modules are looked for, before others.
    path: Vec<String>,
    args: Arguments,
    addresses: AddressesOf,
}

/// The node of the addresses in the arguments, if these were written before the actor's node was known.
/// Actors of another node have no way to these addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AddressesOf(Option<NodeNumber>);

impl Serialize for AddressesOf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.map_or(Ok(()), goes_out_by)?;
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for AddressesOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| AddressesOf(None))
    }
}

/// The interpreter of a worker. If a program names none, each host looks for its own.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Its path, if the program names it.
    path: Option<PathBuf>,
    /// The interpreter's own switches, such as `-u`.
    switches: Vec<String>,
    environment: Vec<(String, String)>,
}

/// The arguments of the class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Arguments {
    /// A value of Rust: MessagePack, named form.
    Values(#[serde(with = "codec::bytes")] Vec<u8>),
    /// In the package's own form.
    Own(#[serde(with = "codec::bytes")] Vec<u8>),
    /// The reason why there are none.
    #[serde(serialize_with = "refused")]
    Refused(String),
}

fn refused<S: Serializer>(why: &str, _: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom(why))
}

impl Python {
    /// Names the class `Class` of the module `app.stages`, for `"app.stages:Class"`.
    pub fn actor(name: impl Into<String>) -> Self {
        // The arguments for a constructor without parameters.
        let args = codec::encode(&(), Vec::new()).map(|encoded| encoded.body).unwrap_or_default();
        Python {
            actor: name.into(),
            interpreter: Interpreter::default(),
            is_like_asker: false,
            path: Vec::new(),
            args: Arguments::Values(args),
            addresses: AddressesOf::default(),
        }
    }

    /// Names a function of a module with `@tp.stage`, for a pipeline (`Flow::python`): `"app.stages:detect"`.
    /// It is the same as [`actor`](Self::actor) for an actor.
    pub fn stage(name: impl Into<String>) -> Self {
        Self::actor(name)
    }

    /// Sets the arguments of the class. A tuple gives its parameters in their order, a struct or a map with
    /// text for keys gives them by name, and anything else is the only one. They are read by the annotations
    /// of `__init__`, as the fields of a message are, so they may hold addresses. Tensors go in messages.
    pub fn args(mut self, args: impl Serialize) -> Self {
        self.args = match codec::encode_for_later(&args) {
            Ok((encoded, node)) if encoded.tensors.is_empty() => {
                self.addresses = AddressesOf(node);
                Arguments::Values(encoded.body)
            }
            Ok(_) => Arguments::Refused(
                "there is a tensor in them; start the actor without it, and send it in a message".to_owned(),
            ),
            Err(error) => Arguments::Refused(error.to_string()),
        };
        self
    }

    /// Sets the interpreter. The default is the value of the environment variable `TENSORPOST_PYTHON`, or the
    /// interpreter of the active virtual environment, or `python3`. For an actor on another host that host
    /// has its own default, and this is a path there.
    pub fn interpreter(mut self, path: impl Into<PathBuf>) -> Self {
        self.interpreter.path = Some(path.into());
        self
    }

    /// Adds a folder in which the interpreter looks for modules before others. A relative one is relative to
    /// the working directory of the node that starts the worker. The working directory itself is searched
    /// only if it is named so: `path(".")`.
    pub fn path(mut self, folder: impl Into<PathBuf>) -> Self {
        self.path.push(folder.into().to_string_lossy().into_owned());
        self
    }

    /// Sets a variable of the worker's environment, which also has those of this process.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.interpreter.environment.push((name.into(), value.into()));
        self
    }

    /// Returns the program of the actor's worker.
    pub(crate) fn program(&self) -> WorkerProgram {
        self.interpreter.program()
    }
}

impl Interpreter {
    /// Returns the program of the actor's worker, on this host.
    pub(crate) fn program(&self) -> WorkerProgram {
        let of_variable =
            |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let active = || of_variable("VIRTUAL_ENV").map(|folder| folder.join("bin/python"));
        let named = self.path.clone().or_else(|| of_variable(VARIABLE));
        // Lazily loaded modules could load behind a wait. But loading all of them costs a Python worker
        // seconds and gigabytes, so it loads the modules that it needs before its first wait.
        let lazily = ("CUDA_MODULE_LOADING".to_owned(), "LAZY".to_owned());
        WorkerProgram {
            path: named.or_else(active).unwrap_or_else(|| "python3".into()),
            // `-P`: modules in the working directory are not imported, because others may write there.
            arguments: [
                &["-P".to_owned()],
                &*self.switches,
                &["-m".to_owned(), "tensorpost.worker".to_owned()],
            ]
            .concat(),
            environment: std::iter::once(lazily).chain(self.environment.iter().cloned()).collect(),
            remedy: "; the worker is `python -m tensorpost.worker`: is it an interpreter, 3.11 or later, that has the package \
                     `tensorpost` (its own words are on stderr)? Name one with `Python::interpreter` or TENSORPOST_PYTHON",
        }
    }
}

/// For pipelines.
impl Python {
    /// Returns the interpreter.
    #[cfg(feature = "hosts")]
    pub(crate) fn its_interpreter(&self) -> Interpreter {
        self.interpreter.clone()
    }

    /// Returns `module:name`.
    #[doc(hidden)]
    pub fn named(&self) -> &str {
        &self.actor
    }
}

/// For the package.
#[cfg(feature = "bindings")]
impl Python {
    /// Returns the interpreter, and its own switches behind it.
    #[doc(hidden)]
    pub fn command(mut self, mut command: impl Iterator<Item = PathBuf>) -> Self {
        self.interpreter.path = command.next();
        self.interpreter.switches = command.map(|switch| switch.to_string_lossy().into_owned()).collect();
        self
    }

    /// Gives its worker the interpreter of the worker that asks for it, so that an actor of Python can start
    /// it ([`Env::spawn`]).
    #[doc(hidden)]
    pub fn like_asker(mut self) -> Self {
        self.is_like_asker = true;
        self
    }

    /// Sets arguments in the package's own form.
    #[doc(hidden)]
    pub fn with_own_args(mut self, args: Vec<u8>) -> Self {
        self.args = Arguments::Own(args);
        self
    }

    /// Returns `module:Class`, the folders, and the arguments: whether they are in the package's own form,
    /// and their bytes.
    #[doc(hidden)]
    pub fn order(&self) -> (&str, &[String], bool, &[u8]) {
        let (own, args) = match &self.args {
            Arguments::Values(args) => (false, args.as_slice()),
            Arguments::Own(args) => (true, args.as_slice()),
            Arguments::Refused(_) => (false, [].as_slice()),
        };
        (&self.actor, &self.path, own, args)
    }
}

impl Actor for Python {
    type Context = Context<Self>;
}

impl RemoteActor for Python {
    type Args = Python;
    const TAKES_ANY: bool = true;

    fn create(args: Python, _: &Env) -> anyhow::Result<Self> {
        anyhow::bail!(
            "`{}` is an actor of Python, and this worker is none; spawn it without `.worker(..)`, or into the worker of another \
             actor of Python",
            args.actor
        )
    }

    fn handles(_: &mut Handles<Self>) {}

    fn worker_program(args: &Python) -> Option<WorkerProgram> {
        (!args.is_like_asker).then(|| args.program())
    }

    fn interpreter(args: &Python) -> Option<Interpreter> {
        Some(args.interpreter.clone())
    }

    fn label(args: &Python) -> Option<String> {
        Some(args.actor.rsplit([':', '.']).next().unwrap_or(&args.actor).to_owned())
    }
}

/// For the types of [`Spawned`](crate::node::Spawned): only Python knows which messages the actor takes.
impl<M: GpuMessage + Portable> Handler<M> for Python {
    type Result = MessageResult<M>;

    fn handle(&mut self, _: M, _: &mut Context<Self>) -> Self::Result {
        unreachable!("`create` makes no such actor")
    }
}
