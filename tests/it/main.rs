//! The only integration-test binary.

mod model_store;
mod tokenizer;
