//! Blocks, tables and copy-on-write.
//!
//! A block holds 16 consecutive positions of one sequence for all layers and KV heads:
//! `[layer][kv_head][K, V][16][row_bytes]`. A full block never changes again, so forks share it for free; a partly filled
//! one is copied by whoever writes into it first.

use crate::engine::kernels::KvRows;
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
