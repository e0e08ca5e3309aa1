//! The only integration-test binary.

mod engine;
mod model_store;
mod smollm2;
mod suites;
mod tokenizer;
mod record;
mod model_files;
mod report;
