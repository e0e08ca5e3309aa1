//! What a budget of bytes holds, in vLLM's terms and words.

use std::fmt;

/// Size of a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// Bytes that the cache may take.
    pub budget_bytes: u64,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Blocks in the budget.
    pub n_block: usize,
    /// Tokens in the budget.
    pub n_token: usize,
    /// Bytes that a token takes in all layers, scales stored with it included.
    pub bytes_per_token: f64,
    /// The same for each layer.
    pub per_layer_bytes: Vec<f64>,
}

impl Capacity {
    /// How many requests of that length fit at once. A request takes whole blocks, at least one.
    pub fn max_concurrency(&self, tokens_per_request: usize) -> f64 {
        let blocks_per_request = tokens_per_request.div_ceil(self.block_tokens).max(1);
        self.n_block as f64 / blocks_per_request as f64
    }

    /// `CPU KV cache size: 262,144 tokens, Maximum concurrency for 8,192 tokens per request: 32.00x`, as vLLM logs it.
    pub fn in_words(&self, tokens_per_request: usize) -> String {
        let (size, request) = (Thousands(self.n_token), Thousands(tokens_per_request));
        let concurrency = self.max_concurrency(tokens_per_request);
        format!(
            "CPU KV cache size: {size} tokens, Maximum concurrency for {request} tokens per request: {concurrency:.2}x"
        )
    }
}

/// A count with a comma between thousands.
struct Thousands(usize);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_counts_whole_blocks_and_is_said_in_the_words_of_the_log() {
        let per_layer_bytes = vec![512.0; 4];
        let capacity = |n_block: usize| Capacity {
            budget_bytes: 1 << 30,
            block_tokens: 16,
            n_block,
            n_token: n_block * 16,
            bytes_per_token: 2048.0,
            per_layer_bytes: per_layer_bytes.clone(),
        };
        assert_eq!(capacity(10).max_concurrency(17), 5.0);
        assert_eq!(capacity(10).max_concurrency(0), 10.0);
        assert_eq!(
            capacity(16_384).in_words(8192),
            "CPU KV cache size: 262,144 tokens, Maximum concurrency for 8,192 tokens per request: 32.00x"
        );
        assert_eq!(
            capacity(28_122).in_words(131_072),
            "CPU KV cache size: 449,952 tokens, Maximum concurrency for 131,072 tokens per request: 3.43x"
        );
        assert_eq!([1, 999, 1000, 1_234_567].map(|n| Thousands(n).to_string()), ["1", "999", "1,000", "1,234,567"]);
    }
}
