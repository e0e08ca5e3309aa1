//! Bytes, tokens and blocks: what fits on which GPU.
