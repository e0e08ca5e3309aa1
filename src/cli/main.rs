//! The binary: parse, dispatch, print errors with hints, exit.

fn main() {}
