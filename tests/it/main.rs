//! The only integration-test binary.

mod engine;
mod gate;
mod model_files;
mod model_store;
mod record;
mod report;
mod smollm2;
mod suites;
mod tokenizer;
