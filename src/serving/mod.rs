//! What a server says of itself: its start-up log, its endpoints, and the process that kvgauge starts.

pub mod checkpoint;
pub mod evidence;
pub mod facts;
pub mod http;
pub mod launch;
pub mod metrics;
pub mod probe;
pub mod startup_log;

pub use facts::ServerFacts;
