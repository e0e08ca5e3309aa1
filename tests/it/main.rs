//! The only integration-test binary.

mod smollm2;
mod suites;
mod tokenizer;
