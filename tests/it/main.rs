//! The only integration-test binary.

mod engine;
mod model_files;
mod model_store;
mod record;
mod report;
mod smollm2;
mod suites;
mod tokenizer;
mod gate;
