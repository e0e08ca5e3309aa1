//! Slices of numbers in, numbers out; no domain words.
