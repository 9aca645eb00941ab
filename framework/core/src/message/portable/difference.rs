//! Describes in words where two schemas differ, field by field.

use super::shape::{Body, Field, Interface, Shape, Variant};
use crate::observe::text::shown;

/// The number of differences that are listed; of the rest only the number is told.
const MAX_LISTED: usize = 16;

/// The length of the longest line, in bytes: a type may be long, and may come from another process.
const MAX_LINE: usize = 400;

/// The longest text of a type in a line, in bytes.
const MAX_TYPE: usize = 120;

/// The names of the two sides.
pub(super) struct Sides<'a> {
    pub(super) this: &'a str,
    pub(super) other: &'a str,
}

struct Differences<'a> {
    sides: Sides<'a>,
    lines: Vec<String>,
    more: usize,
}

/// Returns one line for each difference, and none if the two are equal.
pub(super) fn between(this: &Interface, other: &Interface, sides: Sides<'_>) -> Vec<String> {
    let mut differences = Differences { sides, lines: Vec::new(), more: 0 };
    differences.interface("", this, other);
    let Differences { mut lines, more, .. } = differences;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

impl Differences<'_> {
    fn say(&mut self, path: &str, what: std::fmt::Arguments<'_>) {
        if self.lines.len() == MAX_LISTED {
            self.more += 1;
            return;
        }
        let path = if path.is_empty() { "the message" } else { path };
        self.lines.push(shown(format!("{path}: {what}"), MAX_LINE));
    }

    fn two(&mut self, path: &str, this: &impl std::fmt::Display, other: &impl std::fmt::Display) {
        let short = |one: &dyn std::fmt::Display| shown(one.to_string(), MAX_TYPE);
        let (this, other) = (short(this), short(other));
        let Sides { this: here, other: there } = self.sides;
        self.say(path, format_args!("{here} has {this}, {there} has {other}"));
    }

    fn interface(&mut self, path: &str, this: &Interface, other: &Interface) {
        if this.message != other.message {
            self.two(&format!("{path} (the message's name)"), &this.message, &other.message);
        }
        self.shape(path, &this.body, &other.body);
        self.shape(&joined(path, "(reply)"), &this.reply, &other.reply);
    }

    fn shape(&mut self, path: &str, this: &Shape, other: &Shape) {
        match (this, other) {
            (this, other) if this == other => {}
            (Shape::Option(this), Shape::Option(other))
            | (Shape::Recursive(this), Shape::Recursive(other)) => {
                self.shape(path, this, other);
            }
            (Shape::List(this), Shape::List(other)) | (Shape::Set(this), Shape::Set(other)) => {
                self.shape(&format!("{path}[]"), this, other);
            }
            (Shape::Array(this, here), Shape::Array(other, there)) if here == there => {
                self.shape(&format!("{path}[]"), this, other);
            }
            (Shape::Map(key, value), Shape::Map(other_key, other_value)) => {
                self.shape(&joined(path, "(key)"), key, other_key);
                self.shape(&joined(path, "(value)"), value, other_value);
            }
            (Shape::Tuple(this), Shape::Tuple(other)) if this.len() == other.len() => {
                self.places(path, this, other);
            }
            (Shape::Struct(this), Shape::Struct(other)) => self.fields(path, this, other),
            (Shape::Enum { repr, variants }, Shape::Enum { repr: other_repr, variants: other_variants }) => {
                if repr != other_repr {
                    self.two(&joined(path, "(how the variant is told)"), repr, other_repr);
                }
                self.variants(path, variants, other_variants);
            }
            (Shape::Address(this), Shape::Address(other)) => {
                self.interface(&joined(path, "(to)"), this, other);
            }
            (this, other) => self.two(path, this, other),
        }
    }

    fn places(&mut self, path: &str, this: &[Shape], other: &[Shape]) {
        for (index, (this, other)) in this.iter().zip(other).enumerate() {
            self.shape(&joined(path, &index.to_string()), this, other);
        }
    }

    fn fields(&mut self, path: &str, this: &[Field], other: &[Field]) {
        let find = |fields: &[Field], name: &str| fields.iter().position(|field| field.name == name);
        for field in this {
            let path = joined(path, &field.name);
            match find(other, &field.name).map(|at| &other[at]) {
                None => self.only(&path, &field.shape, true),
                Some(same) => {
                    if field.optional != same.optional {
                        let may = |optional: bool| if optional { "an optional field" } else { "a field" };
                        self.two(&path, &may(field.optional), &may(same.optional));
                    }
                    self.shape(&path, &field.shape, &same.shape);
                }
            }
        }
        for field in other.iter().filter(|field| find(this, &field.name).is_none()) {
            self.only(&joined(path, &field.name), &field.shape, false);
        }
        let names = |fields: &[Field]| fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
        self.order(path, "fields", names(this), names(other));
    }

    fn variants(&mut self, path: &str, this: &[Variant], other: &[Variant]) {
        let find =
            |variants: &[Variant], name: &str| variants.iter().position(|variant| variant.name == name);
        for variant in this {
            let path = joined(path, &variant.name);
            match (&variant.body, find(other, &variant.name).map(|at| &other[at].body)) {
                (_, None) => self.only(&path, variant, true),
                (Body::Newtype(this), Some(Body::Newtype(other))) => self.shape(&path, this, other),
                (Body::Tuple(this), Some(Body::Tuple(other))) if this.len() == other.len() => {
                    self.places(&path, this, other);
                }
                (Body::Struct(this), Some(Body::Struct(other))) => self.fields(&path, this, other),
                (this, Some(other)) if this == other => {}
                (_, Some(body)) => {
                    self.two(&path, variant, &Variant::new(&variant.name, body.clone()));
                }
            }
        }
        for variant in other.iter().filter(|variant| find(this, &variant.name).is_none()) {
            self.only(&joined(path, &variant.name), variant, false);
        }
        let names = |variants: &[Variant]| variants.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        self.order(path, "variants", names(this), names(other));
    }

    fn only(&mut self, path: &str, what: &impl std::fmt::Display, this: bool) {
        let what = shown(what.to_string(), MAX_TYPE);
        let Sides { this: here, other: there } = self.sides;
        let (has, lacks) = if this { (here, there) } else { (there, here) };
        self.say(path, format_args!("{has} has {what}, {lacks} has none"));
    }

    /// Compares the order of names that both sides have.
    fn order(&mut self, path: &str, what: &str, this: Vec<String>, other: Vec<String>) {
        let sorted = |names: &Vec<String>| {
            let mut names = names.clone();
            names.sort();
            names
        };
        if this != other && sorted(&this) == sorted(&other) {
            let path = joined(path, &format!("(order of {what})"));
            self.two(&path, &this.join(", "), &other.join(", "));
        }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
