//! The only integration-test binary.

mod report;
