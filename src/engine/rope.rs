//! Rotary position embedding: the angles of a sequence, and the rotation itself.

use crate::engine::config::{ConfigError, LayerRope, ModelConfig, RopeScaling};

/// Rotary position embedding: rotates value pairs `(i, i + d/2)` of a head by `position · frequency_i`. Su et al. 2021.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) struct Rope {
    /// `[head_dim / 2]`.
    frequencies: Vec<f64>,
    /// Multiplies cosines and sines.
    amplitude: f64,
}

impl Rope {
    /// Frequencies `theta^(−2i/d)`, stretched by `scaling`.
    fn new(head_dim: usize, theta: f64, scaling: RopeScaling, factors: &[f32]) -> Self {
        Self { frequencies: scaling.frequencies(head_dim, theta, factors), amplitude: scaling.amplitude() }
    }

    /// Appends cos, sin `[head_dim / 2]` each of one position to `table`.
    pub(in crate::engine) fn push_angles(&self, position: usize, table: &mut RopeTable) {
        for frequency in &self.frequencies {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            table.cos.push((cos * self.amplitude) as f32);
            table.sin.push((sin * self.amplitude) as f32);
        }
    }
}

/// The rotary angles of all layers of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) struct Ropes {
    global: Rope,
    /// Of layers with a window, where the model gives them their own.
    window: Option<Rope>,
}

impl Ropes {
    /// [`RopeScaling::Default`] keeps the model's own scaling, any other replaces that of the layers which see everything.
    /// Layers with angles of their own keep them: no position is further away than their window, however long the context.
    pub(in crate::engine) fn new(config: &ModelConfig, asked: RopeScaling) -> Result<Self, ConfigError> {
        asked.validate()?;
        let scaling = if asked == RopeScaling::Default { config.rope_scaling } else { asked };
        if scaling == RopeScaling::PerDimension && config.rope_factors.is_empty() {
            return Err(ConfigError::Missing { key: "rope_freqs.weight".into() });
        }
        let global = Rope::new(config.head_dim, config.rope_theta, scaling, &config.rope_factors);
        let window = config.window_rope.map(|rope| Rope::new(config.head_dim, rope.theta, rope.scaling, &[]));
        Ok(Self { global, window })
    }

    /// Appends the angles of one position.
    pub(in crate::engine) fn push_angles(&self, position: usize, tables: &mut RopeTables) {
        self.global.push_angles(position, &mut tables.global);
        if let Some(window) = &self.window {
            window.push_angles(position, &mut tables.window);
        }
    }
}

/// Angles of the rows of a batch, for all layers.
#[derive(Debug, Default)]
pub(in crate::engine) struct RopeTables {
    global: RopeTable,
    window: RopeTable,
}

impl RopeTables {
    /// Those that a layer uses.
    pub(in crate::engine) fn of(&self, rope: LayerRope) -> Option<&RopeTable> {
        match rope {
            LayerRope::None => None,
            LayerRope::Global => Some(&self.global),
            LayerRope::Window => Some(&self.window),
        }
    }
}

/// Cosines and sines of the positions of a batch: `[n_row, head_dim / 2]` each.
#[derive(Debug, Default)]
pub(in crate::engine) struct RopeTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Rotates every head of one row: heads `[n_head, head_dim]`.
    pub(in crate::engine) fn rotate(&self, row: usize, head_dim: usize, heads: &mut [f32]) {
        let half = head_dim / 2;
        let angles = row * half..(row + 1) * half;
        let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
        for head in heads.chunks_exact_mut(head_dim) {
            let (low, high) = head.split_at_mut(half);
            for i in 0..half {
                let (a, b) = (low[i], high[i]);
                low[i] = a * cos[i] - b * sin[i];
                high[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_turns_pairs_by_position_and_keeps_lengths() {
        let mut table = RopeTable::default();
        let rope = Rope::new(4, 100.0, RopeScaling::Default, &[]);
        rope.push_angles(0, &mut table);
        rope.push_angles(3, &mut table);
        let mut head = [1.0, 2.0, 3.0, 4.0];
        table.rotate(0, 4, &mut head);
        assert_eq!(head, [1.0, 2.0, 3.0, 4.0]);
        table.rotate(1, 4, &mut head);
        let (first, second) = (3.0_f32, 0.3_f32);
        let expected = [
            first.cos() - 3.0 * first.sin(),
            2.0 * second.cos() - 4.0 * second.sin(),
            3.0 * first.cos() + first.sin(),
            4.0 * second.cos() + 2.0 * second.sin(),
        ];
        head.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{a} {b}"));
    }
}
