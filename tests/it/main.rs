//! The only integration-test binary.

mod engine;
mod model_files;
