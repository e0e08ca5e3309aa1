//! Managed launches, probes and the evidence of what is in effect, against played servers and a real one.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its server has failed")]

mod evidence;
mod launch;
pub(crate) mod played;
mod probe;
