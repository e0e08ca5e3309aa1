//! Rotary position embedding: frequencies of every scaling, and the rotation itself.

use crate::engine::config::RopeScaling;

/// Rotary position embedding: rotates value pairs `(i, i + d/2)` of a head by `position · frequency_i`. Su et al. 2021.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) struct Rope {
    /// `[head_dim / 2]`, in f64: an f32 angle is off by a thousandth of a turn at position 128K.
    frequencies: Vec<f64>,
}

impl Rope {
    /// Frequencies `theta^(−2i/d)`, stretched by `scaling`.
    pub(in crate::engine) fn new(head_dim: usize, theta: f64, scaling: RopeScaling) -> Self {
        let d = head_dim as f64;
        let (theta, divisor) = match scaling {
            RopeScaling::Default => (theta, 1.0),
            RopeScaling::Linear { factor } => (theta, factor),
            RopeScaling::Ntk { factor } => (theta * factor.powf(d / (d - 2.0)), 1.0),
        };
        let frequencies = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / d) / divisor).collect();
        Self { frequencies }
    }

    /// Appends cos, sin `[head_dim / 2]` each of one position to `table`.
    pub(in crate::engine) fn push_angles(&self, position: usize, table: &mut RopeTable) {
        for frequency in &self.frequencies {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            table.cos.push(cos as f32);
            table.sin.push(sin as f32);
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
        let rope = Rope::new(4, 100.0, RopeScaling::Default);
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

    #[test]
    fn rope_scalings_stretch_as_defined() {
        let plain = Rope::new(64, 10_000.0, RopeScaling::Default).frequencies;
        let linear = Rope::new(64, 10_000.0, RopeScaling::Linear { factor: 4.0 }).frequencies;
        let ntk = Rope::new(64, 10_000.0, RopeScaling::Ntk { factor: 4.0 }).frequencies;
        assert!(plain.iter().zip(&linear).all(|(a, b)| (a / 4.0 - b).abs() < 1e-15));
        assert_eq!(ntk[0], 1.0, "the fastest dimension is not touched");
        assert!((ntk[31] - plain[31] / 4.0).abs() < 1e-12, "the slowest is stretched by the factor");
    }
}
