//! The only integration-test binary.

mod engine;
mod tokenizer;
mod record;
