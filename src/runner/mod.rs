//! Asks every open item of a plan of a target and writes the record. tokio lives here.

pub mod event;
