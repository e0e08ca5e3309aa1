//! The only integration-test binary.

mod record;
