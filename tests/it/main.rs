//! The only integration-test binary.

// The architecture rules: who imports whom, homes of crates and of `unsafe`, complete registries.
mod tidy;
mod engine;
mod smollm2;
mod suites;
mod tokenizer;
mod record;
