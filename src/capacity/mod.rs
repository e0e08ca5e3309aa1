//! Bytes, tokens and blocks: what fits on which GPU.
//!
//! A model's shape ([`ModelShape`], read from `config.json` or given in numbers) times a KV dtype is bytes per token; with the
//! weights and what an engine needs besides it says how long a context fits and how many of them at once ([`fit`]).
//!
//! Everything here is arithmetic on published shapes. It errs towards "does not fit": what is not known to be bounded is counted
//! whole, and what is not counted at all is named in [`ModelShape::notes`].
//!
//! # Adding a KV dtype
//! A codec of the embedded engine counts by itself; any other layout is a line in `cache_dtype.rs`.

mod cache_dtype;
mod config_json;
mod error;
mod fit;
mod layers;
mod parameters;
mod shape;
mod weights;

pub use cache_dtype::{known_cache_dtypes, layer_token_bytes, row_bytes};
pub use error::CapacityError;
pub use fit::{DtypeFit, Gpu, LengthFit, Serving, cache_token_bytes, fit, sequence_bytes};
pub use parameters::Parameters;
pub use shape::{LayerCache, ModelShape, PlainShape};
pub use weights::{WEIGHT_FORMATS, WeightFormat, Weights, weight_format};
