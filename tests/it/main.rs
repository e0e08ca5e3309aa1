//! The only integration-test binary.

mod tokenizer;
