//! Closures for other processes of the program.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use super::linked::{Linked, Table, key_of, link};
use crate::message::codec::DecodeError;
use crate::message::{codec, scope};

/// The process's transport. Addresses in arguments connect to it.
type Transport = Arc<dyn Any + Send + Sync>;

/// Decodes a closure's arguments and calls it.
type Make<M> = fn(&[u8], Option<Transport>) -> Result<M, DecodeError>;

/// A closure without captures, with its arguments. Any process of this program can call it to make a value.
#[doc(hidden)]
#[derive(Clone)]
pub struct Code {
    key: u64,
    /// The arguments, encoded once: every life of a stage gets the same.
    args: Result<Arc<[u8]>, Arc<str>>,
    /// The transport of this process, if the code came from another process.
    transport: Option<Transport>,
}

/// Why a [`Code`] cannot be run.
#[doc(hidden)]
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// The code comes from another program.
    #[error(
        "this worker's program has no such closure: it is another file than the node's; give all hosts the same file, or use \
         a stage instead of the closure"
    )]
    NotHere,
    /// The arguments cannot be read.
    #[error("the arguments of its closure: {0}")]
    Args(String),
}

/// Checks that a closure of type `F` depends on nothing of the process in which it was made. Otherwise the
/// program does not compile.
#[doc(hidden)]
pub const fn captures_nothing<F>() {
    assert!(
        is_code_alone::<F>(),
        "this closure runs in another process, so it must capture nothing: pass what it needs with `.with(args)`, as in \
         `.with(factor).map(\"scale\", |factor, item| ..)`"
    );
}

const fn is_code_alone<F>() -> bool {
    size_of::<F>() == 0 && !std::mem::needs_drop::<F>()
}

/// A closure that other processes of the program can run, because it captures nothing.
///
/// [`captures_nothing`] compares its size with 0 where it is compiled. A value without bytes may still mean
/// something, as a token of which there is one. The bounds keep those out: each process makes a copy of the
/// closure, on a thread of its own. A token that says something of this *machine* and may be copied, as one
/// that proves an instruction set, is let in, and says nothing of another host.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "this closure runs in another process, so it must capture nothing",
    label = "this may hold a value that only this process has",
    note = "pass what it needs with `.with(args)`, as in `.with(factor).map(\"scale\", |factor, item| ..)`",
    note = "a function that takes or returns such a closure says `impl Fn(..) -> .. + Copy + Send + Sync + 'static`"
)]
pub trait CapturesNothing: Copy + Send + Sync + 'static {}

// The compiler names the closure and the remedy, and not the first value in it that cannot be copied.
#[diagnostic::do_not_recommend]
impl<F: Copy + Send + Sync + 'static> CapturesNothing for F {}

impl Code {
    /// Makes code from a closure that makes an `M` of its arguments. [`captures_nothing`] checks at compile
    /// time that the closure can run elsewhere. Here any other closure gives an error when it is sent.
    pub fn new<A, M, F>(args: &A, _make: F) -> Self
    where
        A: Serialize + DeserializeOwned + 'static,
        M: 'static,
        F: FnOnce(A) -> M + CapturesNothing,
    {
        link::<Closure<A, M, F>>();
        Code { key: key_of::<Closure<A, M, F>>(), args: encoded::<A, F>(args), transport: None }
    }

    /// Makes the value, in this process.
    ///
    /// # Errors
    /// The program has no such closure that makes an `M`, or the arguments cannot be read.
    pub fn make<M: 'static>(&self) -> Result<M, CodeError> {
        let make = Table::get().code.get(&self.key).and_then(|make| make.downcast_ref::<Make<M>>());
        let make = make.ok_or(CodeError::NotHere)?;
        let args = self.args.as_ref().map_err(|why| CodeError::Args(why.to_string()))?;
        make(args, self.transport.clone()).map_err(|error| CodeError::Args(error.to_string()))
    }
}

fn encoded<A: Serialize, F>(args: &A) -> Result<Arc<[u8]>, Arc<str>> {
    if !is_code_alone::<F>() {
        return Err("it captures variables of this process".into());
    }
    let encoded = codec::encode(args, Vec::new()).map_err(|error| error.to_string())?;
    if !encoded.leases.is_empty() {
        return Err("a tensor cannot be an argument; send it in a message".into());
    }
    Ok(encoded.into_buffer().body.into())
}

/// A closure's entry in the table.
struct Closure<A, M, F>(PhantomData<fn(A, F) -> M>);

impl<A: DeserializeOwned + 'static, M: 'static, F: FnOnce(A) -> M + CapturesNothing> Linked
    for Closure<A, M, F>
{
    fn add(table: &mut Table) {
        let make: Make<M> = |args, transport| {
            let args = codec::decode::<A>(args, Vec::new(), transport)?;
            Ok(code::<F>()(args))
        };
        table.code.insert(key_of::<Self>(), Box::new(make));
    }
}

/// Makes a closure of this type. [`Code::new`] was given one of the type.
#[expect(unsafe_code, reason = "a value without bytes is made of its type")]
fn code<F: CapturesNothing>() -> F {
    assert!(is_code_alone::<F>(), "of another closure no code is sent");
    // SAFETY: a value without bytes is read from nowhere, which a dangling, aligned pointer may point to.
    // Such a value exists: the program has made one where it made the `Code`. It captures nothing, or only
    // values without bytes that may be copied and may be on any thread, by `CapturesNothing`. So this is one
    // more copy of it, and nothing happens when it drops.
    unsafe { NonNull::<F>::dangling().read() }
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        (self.key, &self.args) == (other.key, &other.args)
    }
}

impl Eq for Code {}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({:016x})", self.key)
    }
}

#[derive(Serialize, Deserialize)]
struct OnWire {
    key: u64,
    #[serde(with = "codec::bytes")]
    args: Vec<u8>,
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let args = self.args.as_ref().map_err(|why| ser::Error::custom(format!("its closure's: {why}")))?;
        OnWire { key: self.key, args: args.to_vec() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let OnWire { key, args } = OnWire::deserialize(deserializer)?;
        Ok(Code { key, args: Ok(args.into()), transport: scope::context() })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn travelled(code: &Code) -> Code {
        let encoded = codec::encode(code, Vec::new()).unwrap();
        codec::decode(&encoded.body, Vec::new(), None).unwrap()
    }

    #[test]
    fn each_closure_of_a_function_is_found_with_the_arguments_that_it_was_given() {
        let doubled = [1_u32, 7].map(|n| Code::new(&n, |n: u32| 2 * n));
        let squared = Code::new(&7_u32, |n: u32| n * n);
        let [one, seven] = doubled.each_ref().map(travelled);
        assert_eq!((one.make::<u32>().unwrap(), seven.make::<u32>().unwrap()), (2, 14));
        assert_eq!(travelled(&squared).make::<u32>().unwrap(), 49);
        assert!(doubled[0] != doubled[1] && doubled[1] != squared && one == doubled[0]);
    }

    #[test]
    fn what_is_not_linked_and_what_makes_something_else_is_refused() {
        let code = Code::new(&(), |()| 7_u32);
        assert!(matches!(code.make::<u64>(), Err(CodeError::NotHere)));
        let unknown = Code { key: code.key ^ 1, ..code.clone() };
        assert!(matches!(travelled(&unknown).make::<u32>(), Err(CodeError::NotHere)));
        // WIRE-1: the arguments have another type.
        let other = Code { key: code.key, ..Code::new(&"seven".to_owned(), |_: String| 7_u32) };
        assert!(matches!(travelled(&other).make::<u32>(), Err(CodeError::Args(_))));
    }

    #[test]
    fn a_closure_that_captures_is_never_made_elsewhere() {
        let seven = 7_u32;
        let code = Code::new(&(), move |()| seven);
        let why = codec::encode(&code, Vec::new()).unwrap_err().to_string();
        assert!(why.contains("captures variables"), "{why}");
        assert!(matches!(code.make::<u32>(), Err(CodeError::Args(_))));
    }
}
