//! The only integration-test binary.
mod gate;
