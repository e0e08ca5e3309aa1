//! K and V of one head in memory, stored through a codec: what experiments attend to.

use crate::engine::kernels::KvRows;
use crate::engine::kv_cache::codec::{self, UnknownDtype};
use crate::engine::kv_cache::{
    BLOCK_TOKENS, BlockTable, CachePlan, KvRounding, LayerPlan, LayerScales, PagedCache, WriteRows,
};

/// K and V of one head, quantized.
pub struct StoredKv {
    cache: PagedCache,
    table: BlockTable,
}

impl StoredKv {
    /// Quantizes k, v `[n_key, head_dim]` to `kv_cache_dtype` (aliases allowed) at scale 1, through the cache of the engine.
    ///
    /// # Errors
    /// If there is no such dtype.
    ///
    /// # Panics
    /// If k and v are not of one shape.
    pub fn new(kv_cache_dtype: &str, head_dim: usize, k: &[f32], v: &[f32]) -> Result<Self, UnknownDtype> {
        assert!(head_dim > 0 && k.len() == v.len() && k.len().is_multiple_of(head_dim), "k, v [n_key, {head_dim}]");
        let layer = LayerPlan { codec: codec::codec(kv_cache_dtype)?, scales: LayerScales::unit() };
        let plan = CachePlan {
            layers: vec![layer],
            n_kv_head: 1,
            head_dim,
            block_tokens: BLOCK_TOKENS,
            rounding: KvRounding::NearestEven,
            noise: [0.0; 2],
        };
        let mut cache = PagedCache::new(&plan, u64::MAX);
        let mut table = BlockTable::default();
        let n_row = k.len() / head_dim;
        cache.reserve(&mut table, 0, n_row).expect("the budget has no bound and the rows are in memory already");
        cache.write(&table, 0, 0, &WriteRows { k, v, stride: head_dim, n_row });
        Ok(Self { cache, table })
    }
}

impl KvRows for StoredKv {
    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
        self.cache.rows(&self.table, 0, 0).decode_f32(start, n, k, v);
    }

    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]) {
        self.cache.rows(&self.table, 0, 0).decode_bf16(start, n, k, v);
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
        self.cache.rows(&self.table, 0, 0).decode_codes_f32(start, n, k, v, k_scales, v_scales);
    }
}
