//! The weight layout that all kernels share.

use std::ops::Range;

use super::TILE_OUT;

/// Inner-dimension padding: one AMX tile row holds 32 BF16 values, and so does one AVX-512 register.
const PAD_IN: usize = 32;

/// One cache line of a packed operand: for each of 16 columns the BF16 bit patterns of two consecutive inputs, the first
/// in the lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TileLine(pub [u32; TILE_OUT]);

impl TileLine {
    /// All zeros: what operands are padded with.
    pub const ZERO: TileLine = TileLine([0; TILE_OUT]);
}

/// Weights of one linear layer in BF16, packed once at load: `[n_out/16][n_in/2][16][2]` bit patterns, both dimensions
/// padded with zeros (`n_out` to 16, `n_in` to 32). The layout of AMX and AVX-512 BF16 (VNNI) operands; the others read it too.
pub struct PackedMatrix {
    /// Rows of the weight (output features).
    pub n_out: usize,
    /// Columns of the weight (input features).
    pub n_in: usize,
    /// `n_in` padded to 32.
    pub n_in_padded: usize,
    lines: Vec<TileLine>,
}

/// Two BF16 bit patterns in one lane, the first in the lower half.
#[inline]
pub(super) const fn pack_pair(first: u16, second: u16) -> u32 {
    first as u32 | (second as u32) << 16
}

/// The two values of a lane.
#[inline]
pub(super) const fn unpack_pair(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xFFFF_0000)]
}

impl PackedMatrix {
    /// Packs `rows_bf16 [n_out, n_in]`, row-major bit patterns.
    ///
    /// # Panics
    /// If the slice does not hold exactly `n_out · n_in` values.
    pub fn pack(n_out: usize, n_in: usize, rows_bf16: &[u16]) -> PackedMatrix {
        assert_eq!(Some(rows_bf16.len()), n_out.checked_mul(n_in), "weight of shape [{n_out}, {n_in}]");
        let n_in_padded = n_in.next_multiple_of(PAD_IN);
        let lines_per_tile = n_in_padded / 2;
        let mut lines = vec![TileLine::ZERO; n_out.div_ceil(TILE_OUT) * lines_per_tile];
        for (out, row) in rows_bf16.chunks_exact(n_in.max(1)).enumerate() {
            let tile = &mut lines[out / TILE_OUT * lines_per_tile..][..lines_per_tile];
            for (line, pair) in tile.iter_mut().zip(row.chunks(2)) {
                line.0[out % TILE_OUT] = pack_pair(pair[0], pair.get(1).copied().unwrap_or(0));
            }
        }
        PackedMatrix { n_out, n_in, n_in_padded, lines }
    }

    /// Number of weight tiles, the last one possibly padded.
    pub fn n_tile(&self) -> usize {
        self.n_out.div_ceil(TILE_OUT)
    }

    /// Real output columns (without padding) of a range of tiles.
    pub fn n_column(&self, tiles: &Range<usize>) -> usize {
        let end = (tiles.end * TILE_OUT).min(self.n_out);
        end.saturating_sub(tiles.start * TILE_OUT)
    }

    /// The lines of one tile: `[n_in_padded/2]`, line i holds inputs 2i and 2i + 1 of its 16 outputs.
    pub fn tile(&self, tile: usize) -> &[TileLine] {
        let lines_per_tile = self.n_in_padded / 2;
        &self.lines[tile * lines_per_tile..][..lines_per_tile]
    }

    /// Lines of a range of tiles, tile after tile.
    pub fn tiles(&self, tiles: &Range<usize>) -> &[TileLine] {
        let lines_per_tile = self.n_in_padded / 2;
        &self.lines[tiles.start * lines_per_tile..tiles.end * lines_per_tile]
    }

    /// Reads back row `out` of the weight: `row [n_in]`. A tied embedding needs no second copy of its table.
    ///
    /// # Panics
    /// If `out` is not a row of the weight or `row` has another length.
    pub fn unpack_row(&self, out: usize, row: &mut [f32]) {
        assert!(out < self.n_out, "row {out} of a weight with {} rows", self.n_out);
        assert_eq!(row.len(), self.n_in, "one value per input");
        for (line, pair) in self.tile(out / TILE_OUT).iter().zip(row.chunks_mut(2)) {
            for (value, weight) in pair.iter_mut().zip(unpack_pair(line.0[out % TILE_OUT])) {
                *value = weight;
            }
        }
    }

    /// Bytes held, padding included.
    pub fn n_byte(&self) -> usize {
        size_of_val(self.lines.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::bf16_to_f32;

    #[test]
    fn rows_come_back_and_the_padding_is_zero() {
        for (n_out, n_in) in [(1, 1), (15, 33), (16, 32), (17, 31), (48, 64)] {
            let rows: Vec<u16> = (0..n_out * n_in).map(|i| 0x3F80 + i as u16).collect();
            let packed = PackedMatrix::pack(n_out, n_in, &rows);
            let mut row = vec![0.0; n_in];
            for out in 0..n_out {
                packed.unpack_row(out, &mut row);
                let expected: Vec<f32> = rows[out * n_in..][..n_in].iter().map(|bits| bf16_to_f32(*bits)).collect();
                assert_eq!(row, expected, "[{n_out}, {n_in}] row {out}");
            }
            let held = packed.tiles(&(0..packed.n_tile()));
            let halves = held.iter().flat_map(|line| line.0).flat_map(unpack_pair);
            let nonzero = halves.filter(|value| *value != 0.0).count();
            assert_eq!(nonzero, n_out * n_in);
            assert_eq!(held.len() * 32, n_out.next_multiple_of(16) * n_in.next_multiple_of(32));
        }
    }

    #[test]
    fn columns_of_the_last_tile_are_clipped() {
        let packed = PackedMatrix::pack(17, 2, &[0; 34]);
        assert_eq!(packed.n_column(&(0..1)), 16);
        assert_eq!(packed.n_column(&(0..2)), 17);
        assert_eq!(packed.n_column(&(1..2)), 1);
        assert_eq!(packed.n_column(&(2..2)), 0);
    }
}
