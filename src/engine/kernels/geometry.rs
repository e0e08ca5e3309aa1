//! Which keys a query sees, and how a job is cut into query tiles and key blocks. Shared by all attention kernels, so that
//! masking is decided in one place.

use std::ops::Range;

use super::{AttentionJob, KEY_BLOCK};

/// Query rows (positions × group) that share one decoded key block. Decoding and packing a block costs about as much as
/// attending to it with a dozen rows, so at this size it is a few per cent; twice as many would push state out of L2.
const QUERY_ROWS: usize = 192;

/// Fewest positions of a query tile, however large the group is.
const MIN_POSITIONS: usize = 8;

/// Query positions of one tile, and so of one task of the thread pool.
pub fn positions_per_task(group: usize) -> usize {
    (QUERY_ROWS / group.max(1)).clamp(MIN_POSITIONS, KEY_BLOCK)
}

/// Keys that the query at `position` sees. A query always sees itself, so a window of 0 acts as 1.
pub(super) fn visible_keys(position: usize, window: Option<usize>) -> Range<usize> {
    let end = position + 1;
    window.map_or(0, |width| end.saturating_sub(width.max(1)))..end
}

/// Bit k is set if key `block_start + k` is in `visible`.
pub(super) fn block_mask(block_start: usize, visible: &Range<usize>) -> u64 {
    let low = visible.start.saturating_sub(block_start).min(KEY_BLOCK);
    let high = visible.end.saturating_sub(block_start).min(KEY_BLOCK);
    if low >= high { 0 } else { (u64::MAX >> (KEY_BLOCK - (high - low))) << low }
}

/// A run of query positions of a job, and the keys they need.
pub(super) struct QueryTile {
    /// Absolute position of the first query.
    pub(super) first_position: usize,
    /// Number of positions.
    pub(super) n_position: usize,
    window: Option<usize>,
}

/// One key block as a query tile sees it.
pub(super) struct KeyBlock {
    /// Absolute position of key 0; a multiple of [`KEY_BLOCK`].
    pub(super) start: usize,
    /// Keys to decode; the rest of the block lies beyond the tile's last query.
    pub(super) n_key: usize,
    /// Positions of the tile (relative) that see at least one key of this block.
    pub(super) positions: Range<usize>,
}

impl QueryTile {
    /// Tile of the positions `first..first + n` of a job.
    pub(super) fn new(job: &AttentionJob<'_>, first: usize, n_position: usize) -> QueryTile {
        QueryTile { first_position: job.first_position + first, n_position, window: job.window }
    }

    /// Key blocks in ascending order, without those that no query of the tile sees.
    pub(super) fn blocks(&self) -> impl Iterator<Item = KeyBlock> + '_ {
        let end = self.first_position + self.n_position;
        let first_block = visible_keys(self.first_position, self.window).start / KEY_BLOCK * KEY_BLOCK;
        (first_block..end).step_by(KEY_BLOCK).map(move |start| {
            // A position sees the block from the moment it reaches its first key until its window has passed the last one.
            let from = start.saturating_sub(self.first_position);
            let until = self.window.map_or(self.n_position, |width| {
                (start + KEY_BLOCK - 1 + width.max(1)).saturating_sub(self.first_position).min(self.n_position)
            });
            KeyBlock { start, n_key: KEY_BLOCK.min(end - start), positions: from..until }
        })
    }

    /// Whether every query of the tile sees the whole block. First and last visible key both grow with the position, so the
    /// first and the last query speak for those between.
    pub(super) fn sees_all(&self, block: &KeyBlock) -> bool {
        self.mask(block, 0) & self.mask(block, self.n_position - 1) == u64::MAX
    }

    /// Mask of the tile's position (relative) in a block.
    pub(super) fn mask(&self, block: &KeyBlock, position: usize) -> u64 {
        block_mask(block.start, &visible_keys(self.first_position + position, self.window))
    }
}

/// Number of positions of a job, after checking its shape.
///
/// # Panics
/// If `q` and `out` are not both `[n_position, group, head_dim]`.
pub(super) fn n_position(job: &AttentionJob<'_>) -> usize {
    let row = job.group * job.head_dim;
    assert!(row > 0, "a job needs a group and a head size");
    assert_eq!(job.q.len(), job.out.len(), "queries and output have one shape");
    assert_eq!(job.q.len() % row, 0, "queries are [n_position, {}, {}]", job.group, job.head_dim);
    job.q.len() / row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::KvRows;

    struct NoRows;

    impl KvRows for NoRows {
        fn decode_f32(&self, _: usize, _: usize, _: &mut [f32], _: &mut [f32]) {}
        fn decode_bf16(&self, _: usize, _: usize, _: &mut [u16], _: &mut [u16]) {}
    }

    fn tile(first_position: usize, n_position: usize, window: Option<usize>) -> QueryTile {
        let job = AttentionJob {
            kv: &NoRows,
            q: &[],
            out: &mut [],
            first_position,
            group: 1,
            head_dim: 1,
            scale: 1.0,
            window,
        };
        QueryTile::new(&job, 0, n_position)
    }

    #[test]
    fn blocks_and_masks_cover_exactly_the_visible_keys() {
        for first in [0, 1, 62, 63, 64, 65, 127, 130, 200] {
            for n in [1, 2, 63, 64, 65] {
                for window in [None, Some(0), Some(1), Some(2), Some(63), Some(64), Some(65), Some(150)] {
                    let tile = tile(first, n, window);
                    let mut seen = vec![Vec::new(); n];
                    for block in tile.blocks() {
                        assert_eq!(block.start % KEY_BLOCK, 0);
                        let all = (0..n).all(|position| tile.mask(&block, position) == u64::MAX);
                        assert_eq!(tile.sees_all(&block), all, "{first} {n} {window:?}");
                        for (position, keys) in seen.iter_mut().enumerate() {
                            let mask = tile.mask(&block, position);
                            assert_eq!(mask != 0, block.positions.contains(&position), "{first} {n} {window:?}");
                            keys.extend((0..KEY_BLOCK).filter(|k| mask >> k & 1 == 1).map(|k| block.start + k));
                            assert_eq!(mask.checked_shr(block.n_key as u32).unwrap_or(0), 0, "undecoded key");
                        }
                    }
                    for (position, keys) in seen.iter().enumerate() {
                        let expected: Vec<usize> = visible_keys(first + position, window).collect();
                        assert_eq!(keys, &expected, "{first} {n} {window:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_task_holds_whole_positions_for_any_group() {
        assert_eq!(positions_per_task(1), 64);
        assert_eq!(positions_per_task(3), 64);
        assert_eq!(positions_per_task(8), 24);
        assert_eq!(positions_per_task(1000), 8);
    }
}
