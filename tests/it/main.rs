//! The only integration-test binary.

mod engine;
mod tokenizer;
mod record;
mod model_files;
