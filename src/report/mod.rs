//! Comparison + verdict → one self-contained HTML file, and the other documents for people and CI.
