//! Reads MessagePack from bytes that were checked to be one value: only as much of the format as the decoder
//! needs.

use rmp::Marker;
use tensorpost_core::message::nesting;

use crate::failure::{Failure, Result};

/// Bytes, and the position up to which they were read. A copy reads the same value again.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    body: &'a [u8],
    at: usize,
}

/// A value without other values inside, or the header of one with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    Nil,
    Bool(bool),
    /// Wide enough for both signs.
    Int(i128),
    F32(f32),
    F64(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    List(usize),
    Map(usize),
}

impl Item<'_> {
    /// Returns the kind of the item, for people.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Item::Nil => "nil",
            Item::Bool(_) => "a bool",
            Item::Int(_) => "an integer",
            Item::F32(_) | Item::F64(_) => "a float",
            Item::Str(_) => "a str",
            Item::Bytes(_) => "bytes",
            Item::List(_) => "a list",
            Item::Map(_) => "a map",
        }
    }
}

impl<'a> Reader<'a> {
    /// # Errors
    /// The bytes are not one value, or are nested too deep. After this check the decoder may recurse.
    pub(crate) fn new(body: &'a [u8]) -> Result<Self> {
        if body.is_empty() {
            return Err(Failure::new("the body is empty"));
        }
        nesting::check(body).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Reader { body, at: 0 })
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.body.len());
        let end = end.ok_or_else(|| Failure::new("the body ends in the middle of a value"))?;
        let bytes = &self.body[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut fixed = [0; N];
        fixed.copy_from_slice(self.bytes(N)?);
        Ok(fixed)
    }

    fn text(&mut self, length: usize) -> Result<Item<'a>> {
        let text = std::str::from_utf8(self.bytes(length)?);
        text.map(Item::Str).map_err(|error| Failure::new(format!("its text is no UTF-8: {error}")))
    }

    fn length8(&mut self) -> Result<usize> {
        Ok(usize::from(u8::from_be_bytes(self.fixed()?)))
    }

    fn length16(&mut self) -> Result<usize> {
        Ok(usize::from(u16::from_be_bytes(self.fixed()?)))
    }

    /// Reads a length of 32 bits. The cast is lossless: addresses on Linux have at least 32 bits.
    fn length32(&mut self) -> Result<usize> {
        Ok(u32::from_be_bytes(self.fixed()?) as usize)
    }

    /// Returns the next value, or the header of one; the values inside come next then.
    pub(crate) fn next(&mut self) -> Result<Item<'a>> {
        let [marker] = self.fixed()?;
        Ok(match Marker::from_u8(marker) {
            Marker::Null => Item::Nil,
            Marker::True => Item::Bool(true),
            Marker::False => Item::Bool(false),
            Marker::FixPos(value) => Item::Int(value.into()),
            Marker::FixNeg(value) => Item::Int(value.into()),
            Marker::U8 => Item::Int(u8::from_be_bytes(self.fixed()?).into()),
            Marker::U16 => Item::Int(u16::from_be_bytes(self.fixed()?).into()),
            Marker::U32 => Item::Int(u32::from_be_bytes(self.fixed()?).into()),
            Marker::U64 => Item::Int(u64::from_be_bytes(self.fixed()?).into()),
            Marker::I8 => Item::Int(i8::from_be_bytes(self.fixed()?).into()),
            Marker::I16 => Item::Int(i16::from_be_bytes(self.fixed()?).into()),
            Marker::I32 => Item::Int(i32::from_be_bytes(self.fixed()?).into()),
            Marker::I64 => Item::Int(i64::from_be_bytes(self.fixed()?).into()),
            Marker::F32 => Item::F32(f32::from_be_bytes(self.fixed()?)),
            Marker::F64 => Item::F64(f64::from_be_bytes(self.fixed()?)),
            Marker::FixStr(length) => self.text(length.into())?,
            Marker::Str8 => {
                let length = self.length8()?;
                self.text(length)?
            }
            Marker::Str16 => {
                let length = self.length16()?;
                self.text(length)?
            }
            Marker::Str32 => {
                let length = self.length32()?;
                self.text(length)?
            }
            Marker::Bin8 => {
                let length = self.length8()?;
                Item::Bytes(self.bytes(length)?)
            }
            Marker::Bin16 => {
                let length = self.length16()?;
                Item::Bytes(self.bytes(length)?)
            }
            Marker::Bin32 => {
                let length = self.length32()?;
                Item::Bytes(self.bytes(length)?)
            }
            Marker::FixArray(length) => Item::List(length.into()),
            Marker::Array16 => Item::List(self.length16()?),
            Marker::Array32 => Item::List(self.length32()?),
            Marker::FixMap(length) => Item::Map(length.into()),
            Marker::Map16 => Item::Map(self.length16()?),
            Marker::Map32 => Item::Map(self.length32()?),
            _ => return Err(Failure::new(format!("byte {marker:#x} begins no value of a message"))),
        })
    }

    /// Returns the next item without reading past it.
    pub(crate) fn peek(&self) -> Result<Item<'a>> {
        let mut reader = *self;
        reader.next()
    }

    /// Skips the next value and everything inside it.
    pub(crate) fn skip(&mut self) -> Result<()> {
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            left += match self.next()? {
                Item::List(length) => length,
                Item::Map(length) => length.saturating_mul(2),
                _ => 0,
            };
        }
        Ok(())
    }

    /// As [`skip`](Self::skip), but returns the bytes that were skipped.
    pub(crate) fn skipped(&mut self) -> Result<&'a [u8]> {
        let from = self.at;
        self.skip()?;
        Ok(&self.body[from..self.at])
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.at == self.body.len()
    }
}
