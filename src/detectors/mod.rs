//! Pure functions that find symptoms of degradation in an output, whatever its score; one file per detector.
