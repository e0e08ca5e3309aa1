//! Blocks, tables and copy-on-write.
//!
//! A block holds `block_tokens` consecutive positions of one sequence for all layers and KV heads:
//! `[layer][kv_head][K, V][block_tokens][row_bytes of the layer]`. A full block never changes again, so forks share it for
//! free; a partly filled one is copied by whoever writes into it first.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::kernels::decode::lut8_to_bf16;
use crate::engine::kernels::{KvRows, prefetch};
use crate::engine::kv_cache::capacity::Capacity;
use crate::engine::kv_cache::codec::{KvCodec, KvRounding};
use crate::engine::kv_cache::hashing::{mix, normal};
use crate::engine::kv_cache::plan::{CachePlan, LayerPlan};

/// Positions per block, vLLM's default.
pub const BLOCK_TOKENS: usize = 16;

/// Why blocks could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The budget is used up.
    #[error(
        "KV cache full: {needed_blocks} more blocks of {block_tokens} tokens needed, {free_blocks} of {n_block} free"
    )]
    Full {
        /// Asked for.
        needed_blocks: usize,
        /// Left.
        free_blocks: usize,
        /// The budget.
        n_block: usize,
        /// Tokens per block.
        block_tokens: usize,
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
    /// Positions from the first on whose blocks, of `block_tokens` each, both tables hold.
    pub fn n_shared(&self, other: &Self, block_tokens: usize) -> usize {
        let same = self.blocks.iter().zip(&other.blocks).take_while(|(own, others)| own == others);
        same.count() * block_tokens
    }
}

struct Block {
    bytes: Vec<u8>,
    n_reference: u32,
}

/// What a code becomes: the static scale, and the decoded codes where the codec has a table of them.
struct StoredScale {
    scale: f32,
    table: Option<Arc<[u16; 256]>>,
}

struct StoredLayer {
    codec: &'static dyn KvCodec,
    row_bytes: usize,
    /// Of the layer's first row in a block.
    offset: usize,
    /// K and V of each KV head.
    scales: Vec<[StoredScale; 2]>,
}

/// All blocks of an engine.
pub struct PagedCache {
    layers: Vec<StoredLayer>,
    n_kv_head: usize,
    head_dim: usize,
    block_tokens: usize,
    block_bytes: usize,
    rounding: KvRounding,
    noise: [f32; 2],
    budget_bytes: u64,
    n_block: usize,
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Largest magnitudes written so far, of K and V of `[layer][kv_head]`.
    observed: Option<Vec<Vec<[f32; 2]>>>,
}

impl PagedCache {
    /// A cache of at most `budget_bytes`; memory is taken when a block is first used.
    ///
    /// # Panics
    /// If `block_tokens` is not a multiple of 16, or a list of scales has neither one entry nor one per KV head.
    pub fn new(plan: &CachePlan, budget_bytes: u64) -> Self {
        let CachePlan { n_kv_head, head_dim, block_tokens, rounding, noise, .. } = *plan;
        assert!(block_tokens > 0 && block_tokens.is_multiple_of(16), "blocks of {block_tokens} tokens");
        let (mut tables, mut block_bytes) = (Tables::new(), 0);
        let mut layers = Vec::with_capacity(plan.layers.len());
        for layer in &plan.layers {
            let row_bytes = layer.codec.row_bytes(head_dim);
            let scales = stored_scales(layer, n_kv_head, &mut tables);
            layers.push(StoredLayer { codec: layer.codec, row_bytes, offset: block_bytes, scales });
            block_bytes += n_kv_head * 2 * block_tokens * row_bytes;
        }
        let n_block = (budget_bytes / block_bytes as u64).min(u64::from(u32::MAX)) as usize;
        let (blocks, free, observed) = (Vec::new(), Vec::new(), None);
        Self {
            layers,
            n_kv_head,
            head_dim,
            block_tokens,
            block_bytes,
            rounding,
            noise,
            budget_bytes,
            n_block,
            blocks,
            free,
            observed,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Tokens per block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// What the budget holds.
    pub fn capacity(&self) -> Capacity {
        let per_layer_bytes = self.layers.iter().map(|layer| (self.n_kv_head * 2 * layer.row_bytes) as f64);
        Capacity {
            budget_bytes: self.budget_bytes,
            block_tokens: self.block_tokens,
            n_block: self.n_block,
            n_token: self.n_block * self.block_tokens,
            bytes_per_token: self.block_bytes as f64 / self.block_tokens as f64,
            per_layer_bytes: per_layer_bytes.collect(),
        }
    }

    /// From now on [`Self::write`] keeps the largest magnitudes.
    pub fn observe(&mut self) {
        self.observed = Some(vec![vec![[0.0; 2]; self.n_kv_head]; self.layers.len()]);
    }

    /// Largest magnitudes since [`Self::observe`]: K and V of `[layer][kv_head]`; nothing if it was not called.
    pub fn observed(&self) -> &[Vec<[f32; 2]>] {
        self.observed.as_deref().unwrap_or_default()
    }

    /// Blocks in the budget.
    pub fn n_block(&self) -> usize {
        self.n_block
    }

    /// Blocks that nobody holds.
    pub fn n_free_block(&self) -> usize {
        self.n_block - self.blocks.len() + self.free.len()
    }

    /// Blocks that [`Self::reserve`] would take.
    pub fn needed_blocks(&self, table: &BlockTable, start: usize, n: usize) -> usize {
        let appended = (start + n).div_ceil(self.block_tokens).saturating_sub(table.blocks.len());
        appended + usize::from(n > 0 && self.shared_tail(table, start).is_some())
    }

    /// An error unless `needed_blocks` can still be taken.
    pub fn check_free(&self, needed_blocks: usize) -> Result<(), CacheError> {
        let free_blocks = self.n_free_block();
        if needed_blocks <= free_blocks {
            return Ok(());
        }
        Err(CacheError::Full { needed_blocks, free_blocks, n_block: self.n_block, block_tokens: self.block_tokens })
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
        let index = start / self.block_tokens;
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
        let (n_kv_head, head_dim, block_tokens) = (self.n_kv_head, self.head_dim, self.block_tokens);
        let StoredLayer { codec, row_bytes, offset, ref scales } = self.layers[layer];
        let mut noisy = vec![0.0; if self.noise == [0.0; 2] { 0 } else { head_dim }];
        for index in 0..rows.n_row {
            let position = start + index;
            let block = &mut self.blocks[table.blocks[position / block_tokens] as usize];
            debug_assert_eq!(block.n_reference, 1, "reserve before write");
            let slot = position % block_tokens;
            for (head, scales) in scales.iter().enumerate().take(n_kv_head) {
                let value = index * rows.stride + head * head_dim;
                for (part, source) in [rows.k, rows.v].into_iter().enumerate() {
                    let mut row = &source[value..value + head_dim];
                    if let Some(observed) = &mut self.observed {
                        let most = &mut observed[layer][head][part];
                        *most = row.iter().fold(*most, |most, value| most.max(value.abs()));
                    }
                    if self.noise[part] > 0.0 {
                        add_noise(row, self.noise[part], [layer, head, position, part], &mut noisy);
                        row = &noisy;
                    }
                    let at = offset + ((head * 2 + part) * block_tokens + slot) * row_bytes;
                    let packed = &mut block.bytes[at..at + row_bytes];
                    match self.rounding {
                        KvRounding::NearestEven => codec.encode_row(row, scales[part].scale, packed),
                        KvRounding::TowardZero => codec.encode_row_toward_zero(row, scales[part].scale, packed),
                    }
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
    fn layer(&self) -> &StoredLayer {
        &self.cache.layers[self.layer]
    }

    /// Scales of K and V.
    fn scales(&self) -> &[StoredScale; 2] {
        &self.layer().scales[self.kv_head]
    }

    /// Calls `decode(packed K, packed V, rows)` for each run of rows that lies in one block.
    fn for_each_run(&self, start: usize, n: usize, mut decode: impl FnMut(&[u8], &[u8], std::ops::Range<usize>)) {
        let (block_tokens, mut position) = (self.cache.block_tokens, start);
        let StoredLayer { row_bytes, offset, .. } = *self.layer();
        while position < start + n {
            let (index, slot) = (position / block_tokens, position % block_tokens);
            let n_run = (block_tokens - slot).min(start + n - position);
            let bytes = &self.cache.blocks[self.table.blocks[index] as usize].bytes;
            let packed = |part: usize| {
                let at = offset + ((self.kv_head * 2 + part) * block_tokens + slot) * row_bytes;
                &bytes[at..at + n_run * row_bytes]
            };
            let first = position - start;
            decode(packed(0), packed(1), first..first + n_run);
            position += n_run;
        }
    }
}

impl KvRows for StoredRows<'_> {
    fn is_16_bit(&self) -> bool {
        matches!(self.layer().codec.name(), "bfloat16" | "float16")
    }

    fn prefetch(&self, start: usize, n: usize) {
        self.for_each_run(start, n, |packed_k, packed_v, _| {
            prefetch(packed_k);
            prefetch(packed_v);
        });
    }

    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
        let (codec, head_dim, [k_scale, v_scale]) = (self.layer().codec, self.cache.head_dim, self.scales());
        self.for_each_run(start, n, |packed_k, packed_v, rows| {
            let values = rows.start * head_dim..rows.end * head_dim;
            codec.decode_rows(packed_k, head_dim, k_scale.scale, &mut k[values.clone()]);
            codec.decode_rows(packed_v, head_dim, v_scale.scale, &mut v[values]);
        });
    }

    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]) {
        let (codec, head_dim, [k_scale, v_scale]) = (self.layer().codec, self.cache.head_dim, self.scales());
        let decode = |packed: &[u8], stored: &StoredScale, values: &mut [u16]| match &stored.table {
            Some(table) => lut8_to_bf16(packed, table, values),
            None => codec.decode_rows_bf16(packed, head_dim, stored.scale, values),
        };
        self.for_each_run(start, n, |packed_k, packed_v, rows| {
            let values = rows.start * head_dim..rows.end * head_dim;
            decode(packed_k, k_scale, &mut k[values.clone()]);
            decode(packed_v, v_scale, &mut v[values]);
        });
    }

    fn decode_codes_f32(
        &self,
        start: usize,
        n: usize,
        k: &mut [f32],
        v: &mut [f32],
        k_scales: &mut [f32],
        v_scales: &mut [f32],
    ) {
        let (codec, head_dim, [k_scale, v_scale]) = (self.layer().codec, self.cache.head_dim, self.scales());
        self.for_each_run(start, n, |packed_k, packed_v, rows| {
            let values = rows.start * head_dim..rows.end * head_dim;
            let (k, k_scales) = (&mut k[values.clone()], &mut k_scales[rows.clone()]);
            codec.decode_codes(packed_k, head_dim, k_scale.scale, k, k_scales);
            codec.decode_codes(packed_v, head_dim, v_scale.scale, &mut v[values], &mut v_scales[rows]);
        });
    }
}

/// Tables by codec and bits of the scale: layers and heads of equal scales share one.
type Tables = BTreeMap<(&'static str, u32), Option<Arc<[u16; 256]>>>;

fn stored_scales(layer: &LayerPlan, n_kv_head: usize, tables: &mut Tables) -> Vec<[StoredScale; 2]> {
    let mut stored = |list: &[f32], head: usize| {
        assert!(list.len() == 1 || list.len() == n_kv_head, "{} scales for {n_kv_head} KV heads", list.len());
        let scale = if list.len() == 1 { list[0] } else { list[head] };
        let entry = tables.entry((layer.codec.name(), scale.to_bits()));
        let table = entry.or_insert_with(|| layer.codec.bf16_table(scale).map(Arc::new)).clone();
        StoredScale { scale, table }
    };
    (0..n_kv_head).map(|head| [stored(&layer.scales.k, head), stored(&layer.scales.v, head)]).collect()
}

/// row + share · RMS(row) · a normal deviate for each value, drawn from the row's place alone so that it depends neither on
/// chunks nor on batches nor on threads. place: layer, KV head, position, part.
fn add_noise(row: &[f32], share: f32, place: [usize; 4], noisy: &mut [f32]) {
    let mean_square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    let deviation = share * mean_square.sqrt();
    let key = place.into_iter().fold(0, |key, index| mix(key ^ index as u64));
    for (dimension, (value, noisy)) in row.iter().zip(noisy).enumerate() {
        *noisy = value + deviation * normal(mix(key ^ dimension as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kv_cache::codec::{CODECS, codec};
    use crate::engine::kv_cache::scales::LayerScales;

    /// Positions that were appended together, with their tag.
    type History = Vec<(std::ops::Range<usize>, f32)>;

    fn plan(dtypes: &[&str], n_kv_head: usize, head_dim: usize) -> CachePlan {
        let layer = |name: &&str| LayerPlan { codec: codec(name).unwrap(), scales: LayerScales::unit() };
        let layers = dtypes.iter().map(layer).collect();
        let (rounding, noise) = (KvRounding::NearestEven, [0.0; 2]);
        CachePlan { layers, n_kv_head, head_dim, block_tokens: BLOCK_TOKENS, rounding, noise }
    }

    fn cache(n_block: u64) -> PagedCache {
        let block_bytes = 2 * 3 * 2 * 16 * 4 * 4;
        PagedCache::new(&plan(&["float32"; 2], 3, 4), n_block * block_bytes + block_bytes - 1)
    }

    /// A cache of `plan` with one sequence: row `position` of layer and head holds `value(layer, head, position, dimension)`,
    /// V the negative of K.
    fn filled(plan: &CachePlan, n: usize, value: impl Fn([usize; 4]) -> f32) -> (PagedCache, BlockTable) {
        let mut cache = PagedCache::new(plan, 1 << 24);
        let mut table = BlockTable::default();
        cache.reserve(&mut table, 0, n).unwrap();
        for layer in 0..plan.layers.len() {
            let width = plan.n_kv_head * plan.head_dim;
            let place = |i: usize| [layer, i % width / plan.head_dim, i / width, i % plan.head_dim];
            let k: Vec<f32> = (0..n * width).map(|i| value(place(i))).collect();
            let v: Vec<f32> = k.iter().map(|value| -value).collect();
            cache.write(&table, layer, 0, &WriteRows { k: &k, v: &v, stride: width, n_row: n });
        }
        (cache, table)
    }

    fn decoded(cache: &PagedCache, table: &BlockTable, layer: usize, head: usize, n: usize) -> (Vec<f32>, Vec<f32>) {
        let n_value = n * cache.head_dim;
        let (mut k, mut v) = (vec![f32::NAN; n_value], vec![f32::NAN; n_value]);
        cache.rows(table, layer, head).decode_f32(0, n, &mut k, &mut v);
        let (mut k_bits, mut v_bits) = (vec![0; n_value], vec![0; n_value]);
        cache.rows(table, layer, head).decode_bf16(0, n, &mut k_bits, &mut v_bits);
        for (exact, bits) in k.iter().chain(&v).zip(k_bits.iter().chain(&v_bits)) {
            assert_eq!(crate::engine::kernels::f32_to_bf16(*exact), *bits, "both ways of decoding agree");
        }
        (k, v)
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
        assert_eq!((first.n_shared(&second, BLOCK_TOKENS), first.n_shared(&first, BLOCK_TOKENS)), (32, 48));
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
        let full = CacheError::Full { needed_blocks: 1, free_blocks: 0, n_block: 3, block_tokens: 16 };
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
        for (name, bytes_per_token) in [
            ("float32", 46_080.0),
            ("bfloat16", 23_040.0),
            ("float16", 23_040.0),
            ("fp8_e4m3", 11_520.0),
            ("fp8_e5m2", 11_520.0),
            ("int8_per_token_head", 12_240.0),
            ("fp8_per_token_head", 12_240.0),
            ("int4_per_token_head", 7_200.0),
        ] {
            let capacity = PagedCache::new(&plan(&[name; 30], 3, 64), 1 << 30).capacity();
            assert_eq!(capacity.bytes_per_token, bytes_per_token, "{name}");
            assert_eq!(capacity.n_block, (1 << 30) / (bytes_per_token as usize * 16), "{name}");
        }
        assert_eq!(CODECS.len(), 8, "a new codec belongs into this test");
    }

    #[test]
    fn layers_of_different_codecs_lie_side_by_side_in_blocks_of_any_length() {
        let dtypes: Vec<&str> = CODECS.iter().map(|codec| codec.name()).collect();
        for block_tokens in [16, 32, 48] {
            let plan = CachePlan { block_tokens, ..plan(&dtypes, 2, 8) };
            let value = |[layer, head, position, dimension]: [usize; 4]| {
                ((layer * 7 + head * 3 + position) as f32 + dimension as f32 / 8.0).sin() * 4.0
            };
            let (cache, table) = filled(&plan, 101, value);
            let capacity = cache.capacity();
            assert_eq!(capacity.per_layer_bytes.iter().sum::<f64>(), capacity.bytes_per_token);
            assert_eq!(cache.block_bytes() as f64, capacity.bytes_per_token * block_tokens as f64);
            for (layer, codec) in CODECS.iter().enumerate() {
                for head in 0..2 {
                    let (k, v) = decoded(&cache, &table, layer, head, 101);
                    for (index, (k, v)) in k.iter().zip(&v).enumerate() {
                        let expected = value([layer, head, index / 8, index % 8]);
                        let bound = codec.max_abs_error(4.0, 8);
                        assert!((k - expected).abs() <= bound && (v + expected).abs() <= bound, "{}", codec.name());
                    }
                }
            }
        }
    }

    #[test]
    fn each_head_has_its_own_scale_and_codes_come_without_it() {
        let scales = LayerScales { k: vec![0.25, 4.0], v: vec![0.5] };
        let mut plan = plan(&["fp8_e4m3", "fp8_e5m2", "int8_per_token_head"], 2, 4);
        plan.layers[..2].iter_mut().for_each(|layer| layer.scales = scales.clone());
        // Exact at each scale, and beyond 448 / 4 where the scale is what saves the value.
        let (cache, table) =
            filled(&plan, 20, |[_, head, _, dimension]| if head == 1 { 1024.0 } else { dimension as f32 });
        for (layer, head, k_scale) in [(0, 0, 0.25), (0, 1, 4.0), (1, 1, 4.0)] {
            let (k, _) = decoded(&cache, &table, layer, head, 20);
            assert_eq!(k[17 * 4..18 * 4], if head == 1 { [1024.0; 4] } else { [0.0, 1.0, 2.0, 3.0] });
            let (mut codes_k, mut codes_v) = (vec![0.0; 80], vec![0.0; 80]);
            let (mut k_scales, mut v_scales) = (vec![0.0; 20], vec![0.0; 20]);
            let rows = cache.rows(&table, layer, head);
            rows.decode_codes_f32(0, 20, &mut codes_k, &mut codes_v, &mut k_scales, &mut v_scales);
            assert_eq!((k_scales, v_scales), (vec![k_scale; 20], vec![0.5; 20]));
            assert!(codes_k.iter().zip(&k).all(|(code, value)| code * k_scale == *value));
        }
        let (_, v) = decoded(&cache, &table, 0, 1, 1);
        assert_eq!(v, [-224.0; 4], "448 · 0.5 is where V saturates");
        let (mut codes, mut scales) = (vec![0.0; 80], vec![0.0; 20]);
        let rows = cache.rows(&table, 2, 1);
        rows.decode_codes_f32(0, 20, &mut codes, &mut [0.0; 80], &mut scales, &mut [0.0; 20]);
        assert_eq!((codes[3], scales[3]), (127.0, 1024.0 / 127.0));
    }

    #[test]
    fn cutting_makes_every_value_smaller() {
        let truncating = CachePlan { rounding: KvRounding::TowardZero, ..plan(&["fp8_e4m3", "bfloat16"], 1, 8) };
        let value = |[_, _, position, dimension]: [usize; 4]| 1.0 + (position * 8 + dimension) as f32 / 256.0;
        let (cache, table) = filled(&truncating, 32, value);
        let (k, _) = decoded(&cache, &table, 0, 0, 32);
        for (index, k) in k.iter().enumerate() {
            assert_eq!(
                *k,
                (value([0, 0, index / 8, index % 8]) * 8.0).floor() / 8.0,
                "three bits after the leading one"
            );
        }
        let (k, _) = decoded(&cache, &table, 1, 0, 32);
        assert_eq!(k[255], 1.0 + 255.0 / 256.0 + 1.0 / 256.0, "16-bit formats round to nearest even");
    }

    #[test]
    fn planted_noise_has_its_ratio_and_depends_on_the_place_alone() {
        let noisy = CachePlan { noise: [10_f32.powf(-12.0 / 20.0), 0.0], ..plan(&["float32"; 2], 2, 64) };
        let value =
            |[_, head, position, dimension]: [usize; 4]| ((position * 64 + dimension + head) as f32).sin() * 3.0;
        let (cache, table) = filled(&noisy, 300, value);
        let (mut signal, mut noise, mut previous) = (0.0, 0.0, Vec::new());
        for (layer, head) in [(0, 0), (0, 1), (1, 0)] {
            let (k, v) = decoded(&cache, &table, layer, head, 300);
            let mut errors = Vec::new();
            for (index, (k, v)) in k.iter().zip(&v).enumerate() {
                let clean = value([layer, head, index / 64, index % 64]);
                assert_eq!(*v, -clean, "only K was asked for");
                signal += f64::from(clean).powi(2);
                noise += f64::from(k - clean).powi(2);
                errors.push(k - clean);
            }
            assert_ne!(errors, previous, "every head and layer has its own");
            previous = errors;
        }
        let snr_db = 10.0 * (signal / noise).log10();
        assert!((snr_db - 12.0).abs() < 0.2, "{snr_db} dB");

        let mut pieces = PagedCache::new(&noisy, 1 << 24);
        let mut table_of_pieces = BlockTable::default();
        for positions in [0..1, 1..40, 40..300] {
            pieces.reserve(&mut table_of_pieces, positions.start, positions.len()).unwrap();
            let place = |i: usize| [0, i % 128 / 64, positions.start + i / 128, i % 64];
            let k: Vec<f32> = (0..positions.len() * 128).map(|i| value(place(i))).collect();
            let rows = WriteRows { k: &k, v: &k, stride: 128, n_row: positions.len() };
            pieces.write(&table_of_pieces, 0, positions.start, &rows);
        }
        let (whole, cut) = (decoded(&cache, &table, 0, 1, 300).0, decoded(&pieces, &table_of_pieces, 0, 1, 300).0);
        assert_eq!(whole, cut);
    }

    #[test]
    fn observed_magnitudes_are_those_of_each_head() {
        let mut cache = cache(4);
        assert!(cache.observed().is_empty());
        cache.observe();
        let mut table = BlockTable::default();
        append(&mut cache, &mut table, 0..20, -30.0);
        let expected = [30.0, 29.75, 29.5].map(|most| [most; 2]);
        assert_eq!(cache.observed(), [expected.to_vec(), expected.to_vec()]);
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
