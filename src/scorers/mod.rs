//! Pure functions `(Item, Completion) → Score`, one file per scorer.
