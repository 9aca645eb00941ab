//! The schema hash: FNV-1a, 64 bits, over a canonical text of the definition (WIRE-1).
//!
//! The text has everything that decides the encoding of a message and its guarantees to the receiver. These
//! are the name, the generics, the reply, the variants and fields in order with their names and types, and
//! all `#[serde(..)]` and `#[tensor(..)]` attributes. It has nothing else, so documentation, visibility,
//! derives, formatting and the place in the source do not count.
//!
//! Types count by their tokens. The macro cannot see the meaning of a name. So changes inside a nested type,
//! the value of a constant in a shape, and the arguments of a generic message are not in the hash.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

use crate::ir::{Body, Fields, Message, SerdeAttrs, Style, TensorCheck};

/// Names the layout of the text; a change of it changes every hash.
const VERSION: &str = "tensorpost-schema-1";

/// Separates two tokens: no token contains it, except a string literal with that control character.
const TOKEN_END: char = '\u{1f}';

/// Returns the hash of a definition.
pub(crate) fn hash(message: &Message) -> u64 {
    fnv1a(text(message).as_bytes())
}

/// FNV-1a with the 64-bit offset basis and prime of the FNV draft (draft-eastlake-fnv, section 5).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the canonical text.
fn text(message: &Message) -> String {
    let mut text = Text::default();
    text.word(VERSION);
    text.word(&message.name);
    text.section("generics", &message.generics);
    text.section("where", &message.generics.where_clause);
    text.section("reply", &message.reply);
    text.serde(&message.serde);
    match &message.body {
        Body::Struct(fields) => {
            text.word("struct");
            text.fields(fields);
        }
        Body::Enum(variants) => {
            text.word("enum");
            for variant in variants {
                text.section("variant", &variant.ident);
                text.serde(&variant.serde);
                text.fields(&variant.fields);
            }
        }
    }
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn word(&mut self, word: &str) {
        self.0.push_str(word);
        self.0.push(TOKEN_END);
    }

    fn section(&mut self, tag: &str, content: &impl ToTokens) {
        // A tag is no token of Rust, so no content can be taken for one.
        self.word(&format!("#{tag}"));
        self.tokens(content.to_token_stream());
    }

    fn serde(&mut self, attrs: &SerdeAttrs) {
        attrs.tokens.iter().for_each(|tokens| self.section("serde", tokens));
    }

    fn fields(&mut self, fields: &Fields) {
        self.word(match fields.style {
            Style::Named => "#named",
            Style::Tuple => "#tuple",
            Style::Unit => "#unit",
        });
        for field in &fields.list {
            self.section("field", &field.member);
            self.section("type", &field.ty);
            self.serde(&field.serde);
            if let Some(check) = &field.check {
                self.check(check);
            }
        }
    }

    /// Adds a check, with its parts in a fixed order, regardless of the order in the source.
    fn check(&mut self, check: &TensorCheck) {
        if let Some(dtype) = check.dtype {
            self.word("#dtype");
            self.word(dtype.variant());
        }
        if let Some(shape) = &check.shape {
            self.word("#shape");
            for entry in shape {
                match entry {
                    Some(size) => self.section("size", size),
                    None => self.word("#any"),
                }
            }
        }
        if let Some(device) = check.device {
            self.word("#device");
            self.word(device.variant());
        }
    }

    /// Adds tokens one by one: `TokenStream::to_string` spaces them differently from one compiler to the
    /// next.
    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    // Invisible groups come from macro_rules! and are not part of the written definition.
                    let (open, close) = match group.delimiter() {
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::None => {
                            self.tokens(group.stream());
                            continue;
                        }
                    };
                    self.word(open);
                    self.tokens(group.stream());
                    self.word(close);
                }
                other => self.word(&other.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
