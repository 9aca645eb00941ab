//! Field types that can never be sent, recognised by their names, so that the error names a replacement
//! instead of an unsatisfied bound. A type hidden behind an alias is caught by the bounds of `GpuMessage`
//! itself.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

use crate::parse::Errors;

/// Refuses a field whose type cannot be sent. A field that serde skips is not sent, so it may borrow for
/// `'static` or be writable; but it must be `Send`.
pub(crate) fn field(label: &str, ty: &Type, skipped: bool, errors: &mut Errors) {
    walk(ty, &mut |ty, fault| {
        if !(skipped && fault.allowed_when_skipped()) {
            errors.push(ty, format_args!("field `{label}`: {fault}"));
        }
    });
}

/// Refuses a reply type that cannot be sent.
pub(crate) fn reply(ty: &Type, errors: &mut Errors) {
    walk(ty, &mut |ty, fault| errors.push(ty, format_args!("the reply: {fault}")));
}

enum Fault {
    /// A borrow, with the owned type to use instead.
    Borrowed(&'static str),
    Writable,
    Rc,
    Pointer,
}

impl Fault {
    fn allowed_when_skipped(&self) -> bool {
        matches!(self, Self::Borrowed(_) | Self::Writable)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Borrowed(owned) => {
                write!(f, "a message must own what it sends, and this borrows it; use {owned}")
            }
            Self::Writable => f.write_str("TensorMut cannot be sent; call freeze() and send a Tensor"),
            Self::Rc => f.write_str("Rc cannot leave its thread; use the value itself or a Box"),
            Self::Pointer => f.write_str(
                "a raw pointer means nothing in another process; send the value itself, or a Tensor for memory",
            ),
        }
    }
}

/// Calls `found` for each fault in `ty`, at any depth of generic arguments, tuples and arrays.
fn walk(ty: &Type, found: &mut dyn FnMut(&Type, Fault)) {
    match ty {
        Type::Reference(reference) => found(ty, Fault::Borrowed(owned_form(&reference.elem))),
        Type::Ptr(_) => found(ty, Fault::Pointer),
        Type::Path(path) => {
            // PhantomData holds no value, so nothing of it is sent.
            let Some(last) = path.path.segments.last().filter(|last| last.ident != "PhantomData") else {
                return;
            };
            if last.ident == "TensorMut" {
                found(ty, Fault::Writable);
            } else if last.ident == "Rc" || last.ident == "Weak" && path_names_rc(path) {
                found(ty, Fault::Rc);
            }
            for segment in &path.path.segments {
                walk_arguments(&segment.arguments, found);
            }
        }
        Type::Tuple(tuple) => tuple.elems.iter().for_each(|elem| walk(elem, found)),
        Type::Array(array) => walk(&array.elem, found),
        Type::Slice(slice) => walk(&slice.elem, found),
        Type::Paren(paren) => walk(&paren.elem, found),
        Type::Group(group) => walk(&group.elem, found),
        _ => {}
    }
}

fn walk_arguments(arguments: &PathArguments, found: &mut dyn FnMut(&Type, Fault)) {
    match arguments {
        PathArguments::None => {}
        PathArguments::AngleBracketed(arguments) => {
            for argument in &arguments.args {
                match argument {
                    GenericArgument::Type(ty) => walk(ty, found),
                    GenericArgument::AssocType(assoc) => walk(&assoc.ty, found),
                    _ => {}
                }
            }
        }
        PathArguments::Parenthesized(arguments) => {
            arguments.inputs.iter().for_each(|ty| walk(ty, found));
            if let ReturnType::Type(_, ty) = &arguments.output {
                walk(ty, found);
            }
        }
    }
}

/// `rc::Weak`, which unlike `sync::Weak` is not `Send`.
fn path_names_rc(path: &syn::TypePath) -> bool {
    path.path.segments.iter().any(|segment| segment.ident == "rc")
}

fn owned_form(borrowed: &Type) -> &'static str {
    match borrowed {
        Type::Slice(_) => "Vec<T> for &[T]",
        Type::Path(path) if path.path.is_ident("str") => "String for &str",
        _ => "the value itself or a Box",
    }
}
