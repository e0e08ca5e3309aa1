//! The static scales of a quantized cache: one for K and one for V in each layer.

/// Per-tensor scales; all 1.0 unless a checkpoint or a calibration says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct KvScales {
    /// K, V of each layer.
    per_layer: Vec<[f32; 2]>,
}

impl KvScales {
    /// No scaling, what a serving engine does without calibration.
    pub fn unit(n_layer: usize) -> Self {
        Self { per_layer: vec![[1.0; 2]; n_layer] }
    }

    /// Scale of the keys of `layer`.
    pub fn k(&self, layer: usize) -> f32 {
        self.per_layer[layer][0]
    }

    /// Scale of the values of `layer`.
    pub fn v(&self, layer: usize) -> f32 {
        self.per_layer[layer][1]
    }
}
