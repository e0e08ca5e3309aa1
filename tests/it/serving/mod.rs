//! Managed launches, probes and the evidence of what is in effect, against played servers and a real one.

mod evidence;
mod launch;
pub(crate) mod played;
mod probe;
