//! A small valid file, every way to damage it, and that nothing is ever allocated on a file's word.

use super::*;

/// Builds the bytes of a GGUF file piece by piece.
#[derive(Clone)]
struct Builder(Vec<u8>);

const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Builder {
    fn new(n_tensor: u64, n_entry: u64) -> Self {
        Self(Vec::new()).raw(b"GGUF").u32(3).u64(n_tensor).u64(n_entry)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, number: u32) -> Self {
        self.raw(&number.to_le_bytes())
    }

    fn u64(self, number: u64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    fn tensor(self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let header = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(header, |header, dim| header.u64(*dim)).u32(type_id).u64(offset)
    }

    fn data(mut self, alignment: usize, bytes: &[u8]) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.raw(bytes).0
    }
}

fn valid_file() -> Vec<u8> {
    Builder::new(2, 6)
        .string("general.architecture")
        .u32(STRING)
        .string("llama")
        .string("general.alignment")
        .u32(4)
        .u32(64)
        .string("tokens")
        .u32(ARRAY)
        .u32(STRING)
        .u64(2)
        .string("Ġthe")
        .string("")
        .string("types")
        .u32(ARRAY)
        .u32(5)
        .u64(2)
        .u32(1)
        .u32(u32::MAX)
        .string("flag")
        .u32(7)
        .raw(&[1])
        .string("half")
        .u32(6)
        .raw(&0.5_f32.to_le_bytes())
        .tensor("matrix", &[32, 2], 8, 0)
        .tensor("vector", &[4], 0, 128)
        .data(64, &[7; 144])
}

#[test]
fn a_valid_file_is_read() {
    let file = valid_file();
    let gguf = parse(&file).unwrap();
    let metadata = &gguf.metadata;
    assert_eq!(metadata.string("general.architecture"), Some("llama"));
    assert_eq!(metadata.unsigned("general.alignment"), Some(64));
    assert_eq!(metadata.strings("tokens"), Some(&["Ġthe".to_owned(), String::new()][..]));
    assert_eq!(metadata.integers("types"), Some(vec![1, -1]));
    assert_eq!((metadata.bool("flag"), metadata.float("half")), (Some(true), Some(0.5)));
    assert_eq!((metadata.string("flag"), metadata.unsigned("nothing")), (None, None));
    assert_eq!(metadata.keys().count(), 6);
    let matrix = &gguf.tensors["matrix"];
    assert_eq!((&matrix.shape[..], matrix.tensor_type, matrix.bytes.len()), (&[2, 32][..], TensorType::Q8_0, 68));
    assert!(matrix.bytes.start.is_multiple_of(64) && gguf.tensors["vector"].bytes.end == file.len());
}

#[test]
fn every_shorter_prefix_is_an_error() {
    let file = valid_file();
    for len in 0..file.len() {
        assert!(matches!(parse(&file[..len]), Err(GgufError::Truncated { .. })), "prefix of {len} bytes");
    }
}

#[test]
fn no_single_changed_byte_makes_it_panic_or_reach_outside() {
    let file = valid_file();
    for at in 0..file.len() {
        for value in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut damaged = file.clone();
            damaged[at] = value;
            if let Ok(gguf) = parse(&damaged) {
                assert!(gguf.tensors.values().all(|tensor| tensor.bytes.end <= damaged.len()));
            }
        }
    }
}

#[test]
fn other_files_and_versions_are_named() {
    assert_eq!(parse(b"PK\x03\x04 and more"), Err(GgufError::Magic { found: b"PK\x03\x04".to_vec() }));
    for version in [0, 1, 4, 0x0300_0000] {
        let file = Builder(Vec::new()).raw(b"GGUF").u32(version).u64(0).u64(0).0;
        assert_eq!(parse(&file), Err(GgufError::Version { version }));
    }
}

/// Counts and lengths that would exhaust memory if they were believed.
#[test]
fn absurd_numbers_are_refused_before_anything_is_allocated() {
    for huge in [1 << 20, 1 << 30, 1 << 60, u64::MAX] {
        let files = [
            Builder::new(huge, 0),
            Builder::new(0, huge),
            Builder::new(0, 1).u64(huge),
            Builder::new(0, 1).string("k").u32(STRING).u64(huge),
            Builder::new(0, 1).string("k").u32(ARRAY).u32(0).u64(huge),
            Builder::new(0, 1).string("k").u32(ARRAY).u32(STRING).u64(huge),
            Builder::new(0, 1).string("k").u32(ARRAY).u32(ARRAY).u64(huge),
            Builder::new(0, 1).string("k").u32(ARRAY).u32(12).u64(huge),
            Builder::new(1, 0).u64(huge),
            Builder::new(1, 0).tensor("t", &[huge, huge, huge], 0, 0),
            Builder::new(1, 0).tensor("t", &[32, huge], 8, 0),
            Builder::new(1, 0).tensor("t", &[4], 0, huge & !31),
        ];
        for (index, file) in files.into_iter().enumerate() {
            let error = parse(&file.data(32, &[0; 64])).expect_err(&format!("file {index} with {huge}"));
            let is_expected =
                matches!(error, GgufError::TooLarge { .. } | GgufError::Truncated { .. } | GgufError::Invalid { .. });
            assert!(is_expected, "{error}");
        }
    }
}

#[test]
fn bounds_hold_even_where_the_bytes_are_there() {
    let key = "k".repeat(MAX_KEY_BYTES as usize + 1);
    assert!(matches!(parse(&Builder::new(0, 1).string(&key).u32(7).raw(&[1]).0), Err(GgufError::TooLarge { .. })));
    let text = "t".repeat(MAX_STRING_BYTES as usize + 1);
    let file = Builder::new(0, 1).string("k").u32(STRING).string(&text).0;
    assert!(matches!(parse(&file), Err(GgufError::TooLarge { .. })));
    let n = MAX_ARRAY_ELEMENTS + 1;
    let file = Builder::new(0, 1).string("k").u32(ARRAY).u32(0).u64(n).raw(&vec![0; n as usize]).0;
    assert!(matches!(parse(&file), Err(GgufError::TooLarge { .. })));
}

#[test]
fn arrays_may_nest_but_not_deeply() {
    let nested = |depth: usize| {
        let start = Builder::new(0, 1).string("k").u32(ARRAY);
        (0..depth).fold(start, |file, _| file.u32(ARRAY).u64(1)).u32(4).u64(1).u32(9).0
    };
    for depth in 0..MAX_NESTING {
        assert!(parse(&nested(depth)).is_ok(), "{depth} levels around one");
    }
    for depth in [MAX_NESTING, 1000, 100_000] {
        assert!(matches!(parse(&nested(depth)), Err(GgufError::TooLarge { .. })), "{depth} levels");
    }
}

#[test]
fn contradictions_are_refused() {
    let flag = |file: Builder, key: &str| file.string(key).u32(7).raw(&[1]);
    let aligned = |alignment: u32| Builder::new(0, 1).string("general.alignment").u32(4).u32(alignment).0;
    let values = [0_u8; 256];
    let files = [
        ("key twice", flag(flag(Builder::new(0, 2), "a"), "a").0),
        ("empty key", flag(Builder::new(0, 1), "").0),
        ("key not UTF-8", Builder::new(0, 1).u64(2).raw(&[0xC3, 0x28]).u32(7).raw(&[1]).0),
        ("unknown value type", Builder::new(0, 1).string("k").u32(13).u64(0).0),
        ("flag of 2", Builder::new(0, 1).string("k").u32(7).raw(&[2]).0),
        ("tensor twice", Builder::new(2, 0).tensor("t", &[4], 0, 0).tensor("t", &[4], 0, 32).data(32, &values)),
        ("empty tensor name", Builder::new(1, 0).tensor("", &[4], 0, 0).data(32, &values)),
        ("no dimensions", Builder::new(1, 0).tensor("t", &[], 0, 0).data(32, &values)),
        ("five dimensions", Builder::new(1, 0).tensor("t", &[1, 1, 1, 1, 1], 0, 0).data(32, &values)),
        ("no values", Builder::new(1, 0).tensor("t", &[4, 0], 0, 0).data(32, &values)),
        ("part of a block", Builder::new(1, 0).tensor("t", &[33], 8, 0).data(32, &values)),
        ("offset not aligned", Builder::new(1, 0).tensor("t", &[4], 0, 4).data(32, &values)),
        ("alignment 0", aligned(0)),
        ("alignment 48", aligned(48)),
        ("alignment 2^30", aligned(1 << 30)),
        ("alignment as text", Builder::new(0, 1).string("general.alignment").u32(STRING).string("32").0),
    ];
    for (name, file) in files {
        let error = parse(&file).expect_err(name);
        assert!(matches!(error, GgufError::Invalid { .. } | GgufError::TooLarge { .. }), "{name}: {error}");
    }
}

#[test]
fn an_unsupported_tensor_type_is_named_with_what_is_supported() {
    let file = Builder::new(1, 0).tensor("blk.0.ffn_up.weight", &[256], 23, 0).data(32, &[0; 256]);
    let message = parse(&file).unwrap_err().to_string();
    assert!(
        message.contains("`blk.0.ffn_up.weight`") && message.contains("23") && message.contains("Q6_K"),
        "{message}"
    );
}
