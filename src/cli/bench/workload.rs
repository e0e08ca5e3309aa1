//! Arithmetic that a prompt takes, counted from the model's dimensions.

use kvgauge::engine::ModelConfig;

/// Floating-point operations of a prefill of `n_token` tokens, a multiply-add counted as two: all matrix products, and for
/// attention QKᵀ and PV over the keys that each query sees. Logits are computed for the last token only.
pub(super) fn prefill_flop(config: &ModelConfig, n_token: usize) -> f64 {
    let (hidden, inner) = (config.hidden_size as f64, config.intermediate_size as f64);
    let q_width = (config.n_head * config.head_dim) as f64;
    let kv_width = (config.n_kv_head * config.head_dim) as f64;
    let weights_per_layer = hidden * (q_width + 2.0 * kv_width) + q_width * hidden + 3.0 * hidden * inner;
    let layers = config.layers.iter().map(|layer| {
        let attention = 4.0 * q_width * visible_pairs(n_token, layer.window);
        2.0 * weights_per_layer * n_token as f64 + attention
    });
    layers.sum::<f64>() + 2.0 * hidden * config.vocab_size as f64
}

/// Pairs of a query and a key that it sees, itself included.
fn visible_pairs(n_token: usize, window: Option<usize>) -> f64 {
    let window = window.unwrap_or(n_token).clamp(1, n_token.max(1)) as f64;
    let n_token = n_token as f64;
    window * (window + 1.0) / 2.0 + (n_token - window).max(0.0) * window
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_as_one_would_by_hand() {
        for (n_token, window) in [(1, None), (5, None), (7, Some(3)), (3, Some(7)), (9, Some(1))] {
            let by_hand: usize = (0..n_token).map(|query| (query + 1).min(window.unwrap_or(n_token))).sum();
            assert_eq!(visible_pairs(n_token, window), by_hand as f64, "{n_token} {window:?}");
        }
    }
}
