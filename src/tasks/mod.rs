//! Generators: `(bin, seed, token counter) → Item`s, one file per task.
