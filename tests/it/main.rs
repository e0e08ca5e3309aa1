//! The only integration-test binary.

// The architecture rules: who imports whom, homes of crates and of `unsafe`, complete registries.
mod tidy;
mod engine;
mod model_store;
mod smollm2;
mod suites;
mod tokenizer;
mod record;
mod model_files;
mod report;
mod gate;
