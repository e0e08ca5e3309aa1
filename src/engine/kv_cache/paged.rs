//! Blocks, tables and copy-on-write.
//!
//! A block holds 16 consecutive positions of one sequence for all layers and KV heads:
//! `[layer][kv_head][K, V][16][row_bytes]`. A full block never changes again, so forks share it for free; a partly filled
//! one is copied by whoever writes into it first.

use crate::engine::kernels::{KvRows, prefetch};
use crate::engine::kv_cache::codec::KvCodec;
use crate::engine::kv_cache::scales::KvScales;

/// Positions per block, vLLM's default.
pub const BLOCK_TOKENS: usize = 16;

/// Dimensions that decide the size of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers.
    pub n_layer: usize,
    /// KV heads per layer.
    pub n_kv_head: usize,
    /// Values per head.
    pub head_dim: usize,
}

/// Why blocks could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The budget is used up.
    #[error(
        "KV cache full: {needed_blocks} more blocks of {BLOCK_TOKENS} tokens needed, {free_blocks} of {n_block} free"
    )]
    Full {
        /// Asked for.
        needed_blocks: usize,
        /// Left.
        free_blocks: usize,
        /// The budget.
        n_block: usize,
    },
    /// The operating system refused memory inside the budget.
    #[error("the operating system refused {bytes} bytes for a KV cache block ({used_blocks} blocks in use)")]
    OutOfMemory {
        /// Asked for.
        bytes: usize,
        /// In use.
        used_blocks: usize,
    },
}

/// The blocks of one sequence, in order of position.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<u32>,
}

impl BlockTable {
    /// Positions from the first on whose blocks both tables hold.
    pub fn n_shared(&self, other: &Self) -> usize {
        let same = self.blocks.iter().zip(&other.blocks).take_while(|(own, others)| own == others);
        same.count() * BLOCK_TOKENS
    }
}

struct Block {
    bytes: Vec<u8>,
    n_reference: u32,
}

/// All blocks of an engine.
pub struct PagedCache {
    codec: &'static dyn KvCodec,
    shape: CacheShape,
    scales: KvScales,
    row_bytes: usize,
    n_block: usize,
    blocks: Vec<Block>,
    free: Vec<u32>,
}

impl PagedCache {
    /// A cache of at most `budget_bytes`; memory is taken when a block is first used.
    pub fn new(codec: &'static dyn KvCodec, shape: CacheShape, scales: KvScales, budget_bytes: u64) -> Self {
        let row_bytes = codec.row_bytes(shape.head_dim);
        let mut cache = Self { codec, shape, scales, row_bytes, n_block: 0, blocks: Vec::new(), free: Vec::new() };
        let affordable = budget_bytes / cache.block_bytes() as u64;
        cache.n_block = affordable.min(u64::from(u32::MAX)) as usize;
        cache
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.shape.n_layer * self.shape.n_kv_head * 2 * BLOCK_TOKENS * self.row_bytes
    }

    /// Bytes that one token takes in all layers.
    pub fn bytes_per_token(&self) -> f64 {
        self.block_bytes() as f64 / BLOCK_TOKENS as f64
    }

    /// Blocks in the budget.
    pub fn n_block(&self) -> usize {
        self.n_block
    }

    /// Blocks that nobody holds.
    pub fn n_free_block(&self) -> usize {
        self.n_block - self.blocks.len() + self.free.len()
    }

    /// The codec in effect.
    pub fn codec(&self) -> &'static dyn KvCodec {
        self.codec
    }

    /// Blocks that [`Self::reserve`] would take.
    pub fn needed_blocks(&self, table: &BlockTable, start: usize, n: usize) -> usize {
        let appended = (start + n).div_ceil(BLOCK_TOKENS).saturating_sub(table.blocks.len());
        appended + usize::from(n > 0 && self.shared_tail(table, start).is_some())
    }

    /// An error unless `needed_blocks` can still be taken.
    pub fn check_free(&self, needed_blocks: usize) -> Result<(), CacheError> {
        let free_blocks = self.n_free_block();
        if needed_blocks <= free_blocks {
            return Ok(());
        }
        Err(CacheError::Full { needed_blocks, free_blocks, n_block: self.n_block })
    }

    /// Makes positions `start..start + n` writable by the owner of `table` alone. On an error nothing has changed.
    pub fn reserve(&mut self, table: &mut BlockTable, start: usize, n: usize) -> Result<(), CacheError> {
        let needed_blocks = self.needed_blocks(table, start, n);
        self.check_free(needed_blocks)?;
        let mut taken = Vec::with_capacity(needed_blocks);
        for _ in 0..needed_blocks {
            match self.take_block() {
                Ok(block) => taken.push(block),
                Err(error) => {
                    taken.into_iter().for_each(|block| self.drop_reference(block));
                    return Err(error);
                }
            }
        }
        if n > 0
            && let Some(index) = self.shared_tail(table, start)
        {
            let (shared, own) = (table.blocks[index], taken.pop().expect("counted above"));
            let bytes = std::mem::take(&mut self.blocks[shared as usize].bytes);
            self.blocks[own as usize].bytes.copy_from_slice(&bytes);
            self.blocks[shared as usize].bytes = bytes;
            self.drop_reference(shared);
            table.blocks[index] = own;
        }
        table.blocks.extend(taken);
        Ok(())
    }

    /// Index of the partly filled block that `start` falls into, if others hold it too.
    fn shared_tail(&self, table: &BlockTable, start: usize) -> Option<usize> {
        let index = start / BLOCK_TOKENS;
        let block = table.blocks.get(index)?;
        (self.blocks[*block as usize].n_reference > 1).then_some(index)
    }

    fn take_block(&mut self) -> Result<u32, CacheError> {
        if let Some(block) = self.free.pop() {
            self.blocks[block as usize].n_reference = 1;
            return Ok(block);
        }
        let n_byte = self.block_bytes();
        let mut bytes = Vec::new();
        let refused = CacheError::OutOfMemory { bytes: n_byte, used_blocks: self.blocks.len() };
        bytes.try_reserve_exact(n_byte).map_err(|_| refused)?;
        bytes.resize(n_byte, 0);
        self.blocks.push(Block { bytes, n_reference: 1 });
        Ok((self.blocks.len() - 1) as u32)
    }

    fn drop_reference(&mut self, block: u32) {
        let holder_count = &mut self.blocks[block as usize].n_reference;
        *holder_count -= 1;
        if *holder_count == 0 {
            self.free.push(block);
        }
    }

    /// A second table of the same blocks.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for block in &table.blocks {
            self.blocks[*block as usize].n_reference += 1;
        }
        BlockTable { blocks: table.blocks.clone() }
    }

    /// Gives the blocks back.
    pub fn release(&mut self, table: BlockTable) {
        table.blocks.into_iter().for_each(|block| self.drop_reference(block));
    }

    /// Quantizes and stores K and V of consecutive positions from `start` on, reserved before.
    /// k, v: one row per position, `stride` values apart, each beginning with `[n_kv_head · head_dim]`.
    pub fn write(&mut self, table: &BlockTable, layer: usize, start: usize, rows: &WriteRows<'_>) {
        let CacheShape { n_kv_head, head_dim, .. } = self.shape;
        let (k_scale, v_scale) = (self.scales.k(layer), self.scales.v(layer));
        for index in 0..rows.n_row {
            let position = start + index;
            let block = &mut self.blocks[table.blocks[position / BLOCK_TOKENS] as usize];
            debug_assert_eq!(block.n_reference, 1, "reserve before write");
            let slot = position % BLOCK_TOKENS;
            for head in 0..n_kv_head {
                let pair = (layer * n_kv_head + head) * 2;
                let value = index * rows.stride + head * head_dim;
                for (part, source, scale) in [(0, rows.k, k_scale), (1, rows.v, v_scale)] {
                    let at = ((pair + part) * BLOCK_TOKENS + slot) * self.row_bytes;
                    let packed = &mut block.bytes[at..at + self.row_bytes];
                    self.codec.encode_row(&source[value..value + head_dim], scale, packed);
                }
            }
        }
    }

    /// What attention of one layer and KV head reads.
    pub fn rows<'a>(&'a self, table: &'a BlockTable, layer: usize, kv_head: usize) -> StoredRows<'a> {
        StoredRows { cache: self, table, layer, kv_head }
    }
}

/// K and V rows on their way into the cache.
pub struct WriteRows<'a> {
    /// Keys, RoPE applied.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Values from one position's row to the next, in both.
    pub stride: usize,
    /// Positions.
    pub n_row: usize,
}

/// Rows of one sequence, layer and KV head inside the blocks.
pub struct StoredRows<'a> {
    cache: &'a PagedCache,
    table: &'a BlockTable,
    layer: usize,
    kv_head: usize,
}

impl StoredRows<'_> {
    /// Calls `decode(packed K, packed V, values)` for each run of rows that lies in one block.
    fn for_each_run(&self, start: usize, n: usize, mut decode: impl FnMut(&[u8], &[u8], std::ops::Range<usize>)) {
        let (cache, mut position) = (self.cache, start);
        let pair = (self.layer * cache.shape.n_kv_head + self.kv_head) * 2;
        while position < start + n {
            let (index, slot) = (position / BLOCK_TOKENS, position % BLOCK_TOKENS);
            let n_run = (BLOCK_TOKENS - slot).min(start + n - position);
            let bytes = &cache.blocks[self.table.blocks[index] as usize].bytes;
            let packed = |part: usize| {
                let at = ((pair + part) * BLOCK_TOKENS + slot) * cache.row_bytes;
                &bytes[at..at + n_run * cache.row_bytes]
            };
            let first = (position - start) * cache.shape.head_dim;
            decode(packed(0), packed(1), first..first + n_run * cache.shape.head_dim);
            position += n_run;
        }
    }
}

impl KvRows for StoredRows<'_> {
    fn prefetch(&self, start: usize, n: usize) {
        self.for_each_run(start, n, |packed_k, packed_v, _| {
            prefetch(packed_k);
            prefetch(packed_v);
        });
    }

    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
        let (codec, head_dim) = (self.cache.codec, self.cache.shape.head_dim);
        let (k_scale, v_scale) = (self.cache.scales.k(self.layer), self.cache.scales.v(self.layer));
        self.for_each_run(start, n, |packed_k, packed_v, values| {
            codec.decode_rows(packed_k, head_dim, k_scale, &mut k[values.clone()]);
            codec.decode_rows(packed_v, head_dim, v_scale, &mut v[values]);
        });
    }

    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]) {
        let (codec, head_dim) = (self.cache.codec, self.cache.shape.head_dim);
        let (k_scale, v_scale) = (self.cache.scales.k(self.layer), self.cache.scales.v(self.layer));
        self.for_each_run(start, n, |packed_k, packed_v, values| {
            codec.decode_rows_bf16(packed_k, head_dim, k_scale, &mut k[values.clone()]);
            codec.decode_rows_bf16(packed_v, head_dim, v_scale, &mut v[values]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kv_cache::codec::{CODECS, codec};

    /// Positions that were appended together, with their tag.
    type History = Vec<(std::ops::Range<usize>, f32)>;

    const SHAPE: CacheShape = CacheShape { n_layer: 2, n_kv_head: 3, head_dim: 4 };

    fn cache(n_block: u64) -> PagedCache {
        let float32 = codec("float32").unwrap();
        let block_bytes = 2 * 3 * 2 * 16 * 4 * 4;
        PagedCache::new(float32, SHAPE, KvScales::unit(2), n_block * block_bytes + block_bytes - 1)
    }

    /// K, V rows of one position that tell where they belong; `tag` tells the sequences apart.
    fn row(position: usize, tag: f32) -> Vec<f32> {
        (0..12).map(|value| position as f32 + value as f32 / 16.0 + tag).collect()
    }

    fn append(cache: &mut PagedCache, table: &mut BlockTable, positions: std::ops::Range<usize>, tag: f32) {
        cache.reserve(table, positions.start, positions.len()).unwrap();
        let k: Vec<f32> = positions.clone().flat_map(|position| row(position, tag)).collect();
        let v: Vec<f32> = k.iter().map(|value| -value).collect();
        for layer in 0..2 {
            let rows = WriteRows { k: &k, v: &v, stride: 12, n_row: positions.len() };
            cache.write(table, layer, positions.start, &rows);
        }
    }

    fn check(cache: &PagedCache, table: &BlockTable, positions: std::ops::Range<usize>, tag: f32) {
        for (layer, kv_head) in [(0, 0), (1, 2), (0, 2)] {
            let n = positions.len();
            let (mut k, mut v) = (vec![f32::NAN; n * 4], vec![f32::NAN; n * 4]);
            cache.rows(table, layer, kv_head).decode_f32(positions.start, n, &mut k, &mut v);
            let expected = positions.clone().flat_map(|p| row(p, tag)[kv_head * 4..kv_head * 4 + 4].to_vec());
            for ((k, v), expected) in k.iter().zip(&v).zip(expected) {
                assert_eq!((*k, *v), (expected, -expected), "layer {layer} head {kv_head}");
            }
        }
    }

    #[test]
    fn rows_come_back_from_any_start_across_blocks() {
        let mut cache = cache(8);
        let mut table = BlockTable::default();
        for positions in [0..1, 1..5, 5..40, 40..41, 41..100] {
            append(&mut cache, &mut table, positions, 0.0);
        }
        for positions in [0..100, 15..17, 16..32, 99..100, 30..30] {
            check(&cache, &table, positions, 0.0);
        }
        assert_eq!((cache.n_block(), cache.n_free_block()), (8, 1));
    }

    #[test]
    fn forks_share_full_blocks_and_copy_the_tail_on_write() {
        let mut cache = cache(8);
        let mut first = BlockTable::default();
        append(&mut cache, &mut first, 0..40, 0.0);
        let mut second = cache.fork(&first);
        assert_eq!(cache.n_free_block(), 5, "a fork costs nothing");
        assert_eq!(cache.needed_blocks(&second, 40, 1), 1, "the shared tail must be copied");
        append(&mut cache, &mut second, 40..50, 0.5);
        assert_eq!(cache.n_free_block(), 3, "one copy, one new block");
        append(&mut cache, &mut first, 40..45, 0.25);
        assert_eq!(cache.n_free_block(), 3, "the tail is its owner's alone again");
        assert_eq!((first.n_shared(&second), first.n_shared(&first)), (32, 48));
        check(&cache, &first, 0..40, 0.0);
        check(&cache, &second, 0..40, 0.0);
        check(&cache, &first, 40..45, 0.25);
        check(&cache, &second, 40..50, 0.5);
        cache.release(first);
        check(&cache, &second, 0..40, 0.0);
        assert_eq!(cache.n_free_block(), 4);
        cache.release(second);
        assert_eq!(cache.n_free_block(), 8);
    }

    #[test]
    fn running_out_changes_nothing() {
        let mut cache = cache(3);
        let mut table = BlockTable::default();
        append(&mut cache, &mut table, 0..40, 0.0);
        let mut fork = cache.fork(&table);
        let full = CacheError::Full { needed_blocks: 1, free_blocks: 0, n_block: 3 };
        assert_eq!(cache.reserve(&mut fork, 40, 1), Err(full.clone()), "no block for the copy");
        assert_eq!(cache.reserve(&mut table, 40, 1), Err(full));
        check(&cache, &fork, 0..40, 0.0);
        cache.release(fork);
        append(&mut cache, &mut table, 40..48, 0.0);
        assert!(cache.reserve(&mut table, 48, 1).is_err());
        check(&cache, &table, 0..48, 0.0);
    }

    #[test]
    fn blocks_take_what_the_codec_says() {
        let shape = CacheShape { n_layer: 30, n_kv_head: 3, head_dim: 64 };
        for (name, bytes_per_token) in
            [("float32", 46_080.0), ("bfloat16", 23_040.0), ("fp8_e5m2", 11_520.0), ("int8_per_token_head", 12_240.0)]
        {
            let cache = PagedCache::new(codec(name).unwrap(), shape, KvScales::unit(30), 1 << 30);
            assert_eq!(cache.bytes_per_token(), bytes_per_token, "{name}");
            assert_eq!(cache.n_block(), (1 << 30) / (bytes_per_token as usize * 16), "{name}");
        }
        assert_eq!(CODECS.len(), 6, "a new codec belongs into this test");
    }

    proptest::proptest! {
        /// Random appends, forks and releases: every sequence always reads back what it wrote, no block is lost.
        #[test]
        fn sequences_never_see_each_other(actions in proptest::collection::vec((0..3_u8, 0..8_usize, 1..40_usize), 1..60)) {
            let mut cache = cache(64);
            let mut sequences: Vec<(BlockTable, History)> = Vec::new();
            for (index, (action, which, n)) in actions.into_iter().enumerate() {
                let tag = index as f32 * 1000.0;
                let which = if sequences.is_empty() { 0 } else { which % sequences.len() };
                match action {
                    _ if sequences.is_empty() => sequences.push((BlockTable::default(), Vec::new())),
                    0 => {
                        let (table, history) = &mut sequences[which];
                        let start = history.last().map_or(0, |(positions, _)| positions.end);
                        if cache.check_free(cache.needed_blocks(table, start, n)).is_ok() {
                            append(&mut cache, table, start..start + n, tag);
                            history.push((start..start + n, tag));
                        }
                    }
                    1 if sequences.len() < 8 => {
                        let twin = (cache.fork(&sequences[which].0), sequences[which].1.clone());
                        sequences.push(twin);
                    }
                    _ => cache.release(sequences.swap_remove(which).0),
                }
                for (table, history) in &sequences {
                    history.iter().for_each(|(positions, tag)| check(&cache, table, positions.clone(), *tag));
                }
            }
            sequences.into_iter().for_each(|(table, _)| cache.release(table));
            proptest::prop_assert_eq!(cache.n_free_block(), 64);
        }
    }
}
