//! The only integration-test binary.

mod engine;
mod model_store;
mod tokenizer;
mod record;
mod model_files;
