//! A GGUF reader that trusts nothing: every count, length, name and offset is checked against the bytes that are there
//! before anything is allocated. The format's definition: `docs/gguf.md` of the ggml project, versions 2 and 3.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::engine::dequant::TensorType;

/// The format allows 65,535 bytes in a key.
const MAX_KEY_BYTES: u64 = 65_535;
/// Chat templates are the longest real strings, tens of KiB.
const MAX_STRING_BYTES: u64 = 16 << 20;
/// Real files have under 3,000 tensors and 100 keys.
const MAX_ENTRIES: u64 = 65_536;
/// The largest real arrays are vocabularies and merges of under a million entries.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
/// ggml's own bound.
const MAX_DIMS: u32 = 4;
/// Arrays of arrays are legal; deep ones exist only to overflow a stack.
const MAX_NESTING: usize = 4;
/// Real files use 32; a page is 4 KiB, a huge page 2 MiB.
const MAX_ALIGNMENT: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// What is wrong with a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes say that it is something else.
    #[error("not a GGUF file: it starts with {found:02x?}")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// Version 1 and big-endian files are not read.
    #[error("GGUF version {version} is not supported; supported: 2, 3 (little endian)")]
    Version {
        /// As stored.
        version: u32,
    },
    /// The file ends too early.
    #[error("file ends at byte {len}, but {what} needs {needed} bytes at {offset}")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where.
        offset: u64,
        /// Bytes needed.
        needed: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// A number above this reader's bound.
    #[error("{what} is {found}, at most {limit} is accepted")]
    TooLarge {
        /// Of what.
        what: String,
        /// As stored.
        found: u64,
        /// The bound.
        limit: u64,
    },
    /// Anything else that is not legal.
    #[error("{what}: {problem}")]
    Invalid {
        /// Which key or tensor.
        what: String,
        /// What about it.
        problem: String,
    },
    /// A tensor type without a decoder here.
    #[error("tensor `{tensor}` has type {type_id}, which is not supported; supported: {}", TensorType::names())]
    TensorType {
        /// Its name.
        tensor: String,
        /// ggml's number of the type.
        type_id: u32,
    },
}

/// One metadata value. Widths are forgotten, signs and kinds are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// `u8` to `u64`.
    Unsigned(u64),
    /// `i8` to `i64`.
    Signed(i64),
    /// `f32` and `f64`.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Values of one kind.
    Array(GgufArray),
}

/// An array of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufArray {
    /// Unsigned integers.
    Unsigned(Vec<u64>),
    /// Signed integers.
    Signed(Vec<i64>),
    /// Floats.
    Float(Vec<f64>),
    /// Flags.
    Bool(Vec<bool>),
    /// Texts.
    String(Vec<String>),
    /// Arrays.
    Array(Vec<GgufArray>),
}

/// Key-value metadata of a GGUF file. Getters return `None` when the key is missing or of another kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufMetadata {
    entries: BTreeMap<String, GgufValue>,
}

impl GgufMetadata {
    /// The raw value.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.entries.get(key)
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Text: `tokenizer.chat_template`.
    pub fn string(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            GgufValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// A non-negative integer of any width: `tokenizer.ggml.bos_token_id`.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            GgufValue::Unsigned(number) => Some(*number),
            GgufValue::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A float of any width, or an integer.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            GgufValue::Float(number) => Some(*number),
            GgufValue::Unsigned(number) => Some(*number as f64),
            GgufValue::Signed(number) => Some(*number as f64),
            _ => None,
        }
    }

    /// A flag: `tokenizer.ggml.add_bos_token`.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Texts: `tokenizer.ggml.tokens`, `tokenizer.ggml.merges`.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.get(key)? {
            GgufValue::Array(GgufArray::String(texts)) => Some(texts),
            _ => None,
        }
    }

    /// Integers of any width and sign: `tokenizer.ggml.token_type`.
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        match self.get(key)? {
            GgufValue::Array(GgufArray::Signed(numbers)) => Some(numbers.clone()),
            GgufValue::Array(GgufArray::Unsigned(numbers)) => {
                numbers.iter().map(|number| i64::try_from(*number).ok()).collect()
            }
            _ => None,
        }
    }

    /// Floats: `tokenizer.ggml.scores`.
    pub fn floats(&self, key: &str) -> Option<&[f64]> {
        match self.get(key)? {
            GgufValue::Array(GgufArray::Float(numbers)) => Some(numbers),
            _ => None,
        }
    }
}

/// Where a tensor lies and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Rows × columns for a matrix, outermost dimension first (the reverse of the file's order).
    pub shape: Vec<usize>,
    /// How values are stored.
    pub tensor_type: TensorType,
    /// Bytes in the file.
    pub bytes: Range<usize>,
}

/// The parsed header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// Key-value pairs.
    pub metadata: GgufMetadata,
    /// Tensors by name.
    pub tensors: BTreeMap<String, GgufTensor>,
}

/// Parses the header of a whole file in memory. Every tensor range returned lies inside `file`.
pub fn parse(file: &[u8]) -> Result<Gguf, GgufError> {
    let mut reader = Reader { file, offset: 0 };
    let magic = reader.take(4, "magic number")?;
    if magic != b"GGUF" {
        return Err(GgufError::Magic { found: magic.to_vec() });
    }
    let version = reader.u32("version")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version { version });
    }
    let n_tensor = capped(reader.u64("tensor count")?, MAX_ENTRIES, "tensor count")?;
    let n_entry = capped(reader.u64("metadata count")?, MAX_ENTRIES, "metadata count")?;

    let mut metadata = GgufMetadata::default();
    for _ in 0..n_entry {
        let key = reader.string(MAX_KEY_BYTES, "metadata key")?;
        let value = reader.value(&key)?;
        if key.is_empty() || metadata.entries.contains_key(&key) {
            return Err(invalid(format!("metadata key `{key}`"), "empty or given twice"));
        }
        metadata.entries.insert(key, value);
    }
    let mut unplaced = BTreeMap::new();
    for _ in 0..n_tensor {
        let name = reader.string(MAX_KEY_BYTES, "tensor name")?;
        let tensor = reader.tensor(&name)?;
        if name.is_empty() || unplaced.contains_key(&name) {
            return Err(invalid(format!("tensor `{name}`"), "name is empty or given twice"));
        }
        unplaced.insert(name, tensor);
    }
    let tensors = place(unplaced, alignment(&metadata)?, reader.offset, file.len())?;
    Ok(Gguf { metadata, tensors })
}

fn alignment(metadata: &GgufMetadata) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let alignment = match metadata.get(key) {
        None => DEFAULT_ALIGNMENT,
        Some(_) => metadata.unsigned(key).ok_or_else(|| invalid(key.into(), "is not an unsigned number"))?,
    };
    if !alignment.is_power_of_two() {
        return Err(invalid(key.into(), "is not a power of two"));
    }
    capped(alignment, MAX_ALIGNMENT, key)
}

/// Turns offsets relative to the data section into ranges of the file.
fn place(
    unplaced: BTreeMap<String, UnplacedTensor>,
    alignment: u64,
    header_end: usize,
    file_len: usize,
) -> Result<BTreeMap<String, GgufTensor>, GgufError> {
    let data_start = (header_end as u64).next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, tensor) in unplaced {
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(invalid(format!("tensor `{name}`"), "its offset is not aligned"));
        }
        let start = data_start.checked_add(tensor.offset);
        let end = start.and_then(|start| start.checked_add(tensor.n_byte));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len as u64 => {
                let bytes = start as usize..end as usize;
                tensors.insert(name, GgufTensor { shape: tensor.shape, tensor_type: tensor.tensor_type, bytes });
            }
            _ => {
                let (what, offset) = (format!("tensor `{name}`"), data_start.saturating_add(tensor.offset));
                return Err(GgufError::Truncated { what, offset, needed: tensor.n_byte, len: file_len as u64 });
            }
        }
    }
    Ok(tensors)
}

struct UnplacedTensor {
    shape: Vec<usize>,
    tensor_type: TensorType,
    offset: u64,
    n_byte: u64,
}

struct Reader<'a> {
    file: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn bytes_left(&self) -> u64 {
        (self.file.len() - self.offset) as u64
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8], GgufError> {
        if n > self.bytes_left() {
            let (offset, len) = (self.offset as u64, self.file.len() as u64);
            return Err(GgufError::Truncated { what: what.into(), offset, needed: n, len });
        }
        let bytes = &self.file[self.offset..self.offset + n as usize];
        self.offset += n as usize;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        Ok(self.take(N as u64, what)?.try_into().expect("take returns as many bytes as asked for"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, limit: u64, what: &str) -> Result<String, GgufError> {
        let n = capped(self.u64(what)?, limit, &format!("length of {what}"))?;
        let bytes = self.take(n, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| invalid(what.into(), "is not UTF-8"))?;
        Ok(text.into())
    }

    fn value(&mut self, key: &str) -> Result<GgufValue, GgufError> {
        let what = format!("metadata `{key}`");
        let kind = ValueKind::read(self.u32(&what)?, &what)?;
        // A single value is read as an array of one.
        let first = |array: GgufArray| match array {
            GgufArray::Unsigned(numbers) => numbers.first().copied().map(GgufValue::Unsigned),
            GgufArray::Signed(numbers) => numbers.first().copied().map(GgufValue::Signed),
            GgufArray::Float(numbers) => numbers.first().copied().map(GgufValue::Float),
            GgufArray::Bool(flags) => flags.first().copied().map(GgufValue::Bool),
            GgufArray::String(texts) => texts.into_iter().next().map(GgufValue::String),
            GgufArray::Array(arrays) => arrays.into_iter().next().map(GgufValue::Array),
        };
        Ok(first(self.elements(kind, 1, 0, &what)?).expect("one element was read"))
    }

    fn elements(&mut self, kind: ValueKind, n: u64, nesting: usize, what: &str) -> Result<GgufArray, GgufError> {
        // Before anything is allocated: that many elements must still be in the file.
        let least_bytes = n.saturating_mul(kind.least_bytes());
        if least_bytes > self.bytes_left() {
            let (offset, len) = (self.offset as u64, self.file.len() as u64);
            return Err(GgufError::Truncated { what: what.into(), offset, needed: least_bytes, len });
        }
        let all = 0..capped(n, MAX_ARRAY_ELEMENTS, &format!("length of {what}"))?;
        Ok(match kind {
            ValueKind::U8 => GgufArray::Unsigned(self.each(all, |r| Ok(u8::from_le_bytes(r.array(what)?).into()))?),
            ValueKind::I8 => GgufArray::Signed(self.each(all, |r| Ok(i8::from_le_bytes(r.array(what)?).into()))?),
            ValueKind::U16 => GgufArray::Unsigned(self.each(all, |r| Ok(u16::from_le_bytes(r.array(what)?).into()))?),
            ValueKind::I16 => GgufArray::Signed(self.each(all, |r| Ok(i16::from_le_bytes(r.array(what)?).into()))?),
            ValueKind::U32 => GgufArray::Unsigned(self.each(all, |r| Ok(r.u32(what)?.into()))?),
            ValueKind::I32 => GgufArray::Signed(self.each(all, |r| Ok(i32::from_le_bytes(r.array(what)?).into()))?),
            ValueKind::F32 => GgufArray::Float(self.each(all, |r| Ok(f32::from_le_bytes(r.array(what)?).into()))?),
            ValueKind::U64 => GgufArray::Unsigned(self.each(all, |r| r.u64(what))?),
            ValueKind::I64 => GgufArray::Signed(self.each(all, |r| Ok(i64::from_le_bytes(r.array(what)?)))?),
            ValueKind::F64 => GgufArray::Float(self.each(all, |r| Ok(f64::from_le_bytes(r.array(what)?)))?),
            ValueKind::Bool => GgufArray::Bool(self.each(all, |r| match r.array(what)? {
                [0] => Ok(false),
                [1] => Ok(true),
                [other] => Err(invalid(what.into(), &format!("a flag is stored as {other}"))),
            })?),
            ValueKind::String => GgufArray::String(self.each(all, |r| r.string(MAX_STRING_BYTES, what))?),
            ValueKind::Array => GgufArray::Array(self.each(all, |r| r.nested(nesting + 1, what))?),
        })
    }

    fn each<T>(
        &mut self,
        all: Range<u64>,
        mut read: impl FnMut(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        all.map(|_| read(self)).collect()
    }

    fn nested(&mut self, nesting: usize, what: &str) -> Result<GgufArray, GgufError> {
        capped(nesting as u64, MAX_NESTING as u64, &format!("nesting of {what}"))?;
        let kind = ValueKind::read(self.u32(what)?, what)?;
        let n = self.u64(what)?;
        self.elements(kind, n, nesting, what)
    }

    fn tensor(&mut self, name: &str) -> Result<UnplacedTensor, GgufError> {
        let what = format!("tensor `{name}`");
        let n_dim = self.u32(&what)?;
        capped(u64::from(n_dim), u64::from(MAX_DIMS), &format!("dimensions of {what}"))?;
        let mut shape = Vec::with_capacity(n_dim as usize);
        let mut n_value = 1_u64;
        for _ in 0..n_dim {
            let length = self.u64(&what)?;
            n_value = n_value.checked_mul(length).ok_or_else(|| invalid(what.clone(), "its size overflows"))?;
            shape.push(usize::try_from(length).map_err(|_| invalid(what.clone(), "its size overflows"))?);
        }
        if n_value == 0 || n_dim == 0 {
            return Err(invalid(what, "it has no values"));
        }
        let type_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let unsupported = || GgufError::TensorType { tensor: name.into(), type_id };
        let tensor_type = TensorType::from_ggml(type_id).ok_or_else(unsupported)?;
        let row_bytes = tensor_type.row_bytes(shape[0] as u64);
        let row_bytes = row_bytes.ok_or_else(|| invalid(what.clone(), "a row is not a whole number of blocks"))?;
        let n_byte = (n_value / shape[0] as u64).checked_mul(row_bytes);
        let n_byte = n_byte.ok_or_else(|| invalid(what, "its size overflows"))?;
        shape.reverse();
        Ok(UnplacedTensor { shape, tensor_type, offset, n_byte })
    }
}

#[derive(Clone, Copy)]
enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueKind {
    fn read(id: u32, what: &str) -> Result<Self, GgufError> {
        const IN_ORDER: [ValueKind; 13] = [
            ValueKind::U8,
            ValueKind::I8,
            ValueKind::U16,
            ValueKind::I16,
            ValueKind::U32,
            ValueKind::I32,
            ValueKind::F32,
            ValueKind::Bool,
            ValueKind::String,
            ValueKind::Array,
            ValueKind::U64,
            ValueKind::I64,
            ValueKind::F64,
        ];
        let kind = IN_ORDER.get(id as usize).copied();
        kind.ok_or_else(|| invalid(what.into(), &format!("has unknown value type {id}")))
    }

    fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

fn capped(found: u64, limit: u64, what: &str) -> Result<u64, GgufError> {
    if found > limit { Err(GgufError::TooLarge { what: what.into(), found, limit }) } else { Ok(found) }
}

fn invalid(what: String, problem: &str) -> GgufError {
    GgufError::Invalid { what, problem: problem.into() }
}

#[cfg(test)]
mod tests;
