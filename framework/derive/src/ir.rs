//! The macro's knowledge of a message: checked, plain data between [`parse`](crate::parse) and
//! [`codegen`](crate::codegen).

use proc_macro2::{Ident, TokenStream};
use syn::{Expr, Generics, Member, Meta, Path, Type};

/// A type that derives `GpuMessage`.
pub(crate) struct Message {
    pub(crate) ident: Ident,
    pub(crate) generics: Generics,
    /// The name on the wire and in errors: the identifier, unless `#[gpu_message(name = "…")]` says
    /// otherwise.
    pub(crate) name: String,
    pub(crate) reply: Type,
    /// The path under which `tensorpost` is reachable.
    pub(crate) root: Path,
    /// Whether it gets a schema that other languages can write.
    pub(crate) portable: bool,
    pub(crate) serde: SerdeAttrs,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Struct(Fields),
    Enum(Vec<Variant>),
}

pub(crate) struct Variant {
    pub(crate) ident: Ident,
    pub(crate) serde: SerdeAttrs,
    pub(crate) fields: Fields,
}

/// The fields of a struct or of one variant.
pub(crate) struct Fields {
    pub(crate) style: Style,
    pub(crate) list: Vec<Field>,
}

/// How the fields are written; `serde` encodes each style differently, so the schema hash covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Named,
    Tuple,
    Unit,
}

pub(crate) struct Field {
    pub(crate) member: Member,
    /// The field's name in errors: `pixels`, `0`, `Crop.image`, `Crop.0`.
    pub(crate) label: String,
    pub(crate) ty: Type,
    pub(crate) serde: SerdeAttrs,
    pub(crate) check: Option<TensorCheck>,
    /// The type that a portable schema takes it for.
    pub(crate) portable_as: Option<Type>,
}

/// One `#[tensor(..)]`; a part that is `None` is not checked.
#[derive(Default)]
pub(crate) struct TensorCheck {
    pub(crate) dtype: Option<DType>,
    /// One entry a dimension; `None` stands for `_`.
    pub(crate) shape: Option<Vec<Option<Expr>>>,
    pub(crate) device: Option<Device>,
}

/// The `#[serde(..)]` attributes of one item, which belong to the definition of the message.
#[derive(Default)]
pub(crate) struct SerdeAttrs {
    /// The arguments of each attribute, as written.
    pub(crate) tokens: Vec<TokenStream>,
    /// The keys in them: `skip`, `rename`, …
    pub(crate) keys: Vec<String>,
    /// The same with their values.
    pub(crate) metas: Vec<Meta>,
}

impl SerdeAttrs {
    pub(crate) fn has_any(&self, keys: &[&str]) -> bool {
        self.keys.iter().any(|key| keys.contains(&key.as_str()))
    }

    /// Returns whether serde leaves the item out, in at least one direction.
    pub(crate) fn skips(&self) -> bool {
        self.has_any(&["skip", "skip_serializing", "skip_deserializing"])
    }
}

impl Message {
    /// Returns every field of the struct, or of all variants.
    pub(crate) fn fields(&self) -> Box<dyn Iterator<Item = &Field> + '_> {
        match &self.body {
            Body::Struct(fields) => Box::new(fields.list.iter()),
            Body::Enum(variants) => Box::new(variants.iter().flat_map(|variant| &variant.fields.list)),
        }
    }

    /// Returns every set of serde attributes: the container's, the variants' and the fields'.
    pub(crate) fn serde_attrs(&self) -> impl Iterator<Item = &SerdeAttrs> + '_ {
        let variants = match &self.body {
            Body::Struct(_) => &[],
            Body::Enum(variants) => variants.as_slice(),
        };
        std::iter::once(&self.serde)
            .chain(variants.iter().map(|variant| &variant.serde))
            .chain(self.fields().map(|field| &field.serde))
    }
}

/// A closed set of words that an attribute takes, each with the variant of `tensorpost`'s enum that it means.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($word:literal => $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            pub(crate) const ALLOWED: &'static [&'static str] = &[$($word),+];

            pub(crate) fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Returns the name of the variant in `tensorpost`.
            pub(crate) const fn variant(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }
    };
}

words! {
    /// The element type that a check asks for.
    DType {
        "bool" => Bool, "u8" => U8, "u16" => U16, "u32" => U32, "u64" => U64,
        "i8" => I8, "i16" => I16, "i32" => I32, "i64" => I64,
        "f16" => F16, "bf16" => BF16, "f32" => F32, "f64" => F64,
        "f8e4m3" => F8E4M3, "f8e5m2" => F8E5M2, "f8e4m3fnuz" => F8E4M3Fnuz, "f8e5m2fnuz" => F8E5M2Fnuz,
        "f8e8m0" => F8E8M0, "f4e2m1x2" => F4E2M1X2, "complex64" => Complex64, "complex128" => Complex128,
    }
}

words! {
    /// The kind of device that a check asks for.
    Device { "host" => Host, "cuda" => Cuda }
}
