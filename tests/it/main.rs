//! The only integration-test binary.

// The architecture rules: who imports whom, homes of crates and of `unsafe`, complete registries.
mod engine;
mod gate;
mod model_files;
mod model_store;
mod record;
mod report;
mod smollm2;
mod suites;
mod tidy;
mod tokenizer;
// The command line from outside: help, messages, exit codes, dry runs.
mod cli;
mod gate;
