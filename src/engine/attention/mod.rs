//! Which attention backend a serving engine would take, and what that backend computes.
mod arithmetic;
mod emulated;
mod stored;

pub use arithmetic::{Accumulator, Arithmetic, KvScaling, MechanismError, Phase, QueryRounding, WeightRounding};
pub use emulated::simulate;
pub(in crate::engine) use emulated::{kernel_in, own_arithmetic};
pub use stored::StoredKv;
