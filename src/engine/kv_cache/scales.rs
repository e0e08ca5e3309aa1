//! Static scales: of each layer one for K and one for V, or one per KV head.

use crate::engine::options::ScaleGranularity;

/// K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPart {
    /// Keys.
    K,
    /// Values.
    V,
}

impl std::fmt::Display for KvPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::K { "K" } else { "V" })
    }
}

/// Scales of one layer, each list of one or of one per KV head.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerScales {
    /// Scales of the keys.
    pub k: Vec<f32>,
    /// Scales of the values.
    pub v: Vec<f32>,
}

/// A scale that nothing can be divided by.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{part} scale of layer {layer} is {value}: a scale must be finite and above 0")]
pub struct ScaleError {
    /// Which layer.
    pub layer: usize,
    /// K or V.
    pub part: KvPart,
    /// As found.
    pub value: f32,
}

impl LayerScales {
    /// No scaling, what a serving engine does without calibration.
    pub fn unit() -> Self {
        Self { k: vec![1.0], v: vec![1.0] }
    }

    /// Scales that use the whole range of a format: largest magnitude / `range`.
    /// abs_max: of each KV head, K and V.
    pub fn from_abs_max(abs_max: &[[f32; 2]], range: f32, granularity: ScaleGranularity) -> Self {
        let of_part = |part: usize| -> Vec<f32> {
            let heads = abs_max.iter().map(|head| head[part]);
            match granularity {
                ScaleGranularity::Tensor => vec![heads.fold(0.0, f32::max) / range],
                ScaleGranularity::Head => heads.map(|abs_max| abs_max / range).collect(),
            }
        };
        Self { k: of_part(0), v: of_part(1) }
    }

    /// An error for the first scale that is zero, negative, NaN or infinite.
    pub fn check(&self, layer: usize) -> Result<(), ScaleError> {
        let all = self.k.iter().map(|value| (KvPart::K, *value)).chain(self.v.iter().map(|value| (KvPart::V, *value)));
        // Reciprocals are taken, and that of the smallest magnitudes is infinite.
        let is_bad = |value: f32| !(value.is_finite() && value > 0.0 && (1.0 / value).is_finite());
        match all.into_iter().find(|(_, value)| is_bad(*value)) {
            Some((part, value)) => Err(ScaleError { layer, part, value }),
            None => Ok(()),
        }
    }
}

/// `per head, K 0.0123…0.21, V 0.01…0.2`: the span of the scales of all layers that have some.
pub fn describe<'a>(layers: impl Iterator<Item = &'a LayerScales> + Clone) -> String {
    let is_per_head = layers.clone().any(|layer| layer.k.len() > 1 || layer.v.len() > 1);
    let span = |part: fn(&LayerScales) -> &[f32]| {
        let values = layers.clone().flat_map(part).copied();
        let (low, high) = values.fold((f32::INFINITY, 0_f32), |(low, high), v| (low.min(v), high.max(v)));
        if low == high { brief(low) } else { format!("{}…{}", brief(low), brief(high)) }
    };
    let granularity = if is_per_head { "head" } else { "tensor" };
    format!("per {granularity}, K {}, V {}", span(|layer| &layer.k), span(|layer| &layer.v))
}

/// Three significant digits.
fn brief(value: f32) -> String {
    let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_of_a_tensor_or_head_fills_the_range() {
        let abs_max = [[44.8, 896.0], [448.0, 4.48]];
        let tensor = LayerScales::from_abs_max(&abs_max, 448.0, ScaleGranularity::Tensor);
        assert_eq!(tensor, LayerScales { k: vec![1.0], v: vec![2.0] });
        let head = LayerScales::from_abs_max(&abs_max, 448.0, ScaleGranularity::Head);
        assert_eq!(head, LayerScales { k: vec![0.1, 1.0], v: vec![2.0, 0.01] });
    }

    #[test]
    fn scales_that_divide_nothing_are_named() {
        assert_eq!(LayerScales::unit().check(0), Ok(()));
        for value in [0.0, -0.5, f32::INFINITY, 1e-45] {
            let scales = LayerScales { k: vec![1.0], v: vec![1.0, value] };
            assert_eq!(scales.check(7), Err(ScaleError { layer: 7, part: KvPart::V, value }));
        }
        let error = LayerScales { k: vec![f32::NAN], v: vec![1.0] }.check(3).unwrap_err();
        assert_eq!(error.to_string(), "K scale of layer 3 is NaN: a scale must be finite and above 0");
    }

    #[test]
    fn the_words_give_the_span() {
        let layers = [LayerScales { k: vec![0.012_34], v: vec![2.0] }, LayerScales { k: vec![0.21], v: vec![2.0] }];
        assert_eq!(describe(layers.iter()), "per tensor, K 0.0123…0.21, V 2");
        let heads = [LayerScales { k: vec![1234.5, 0.1], v: vec![1e-9] }];
        assert_eq!(describe(heads.iter()), "per head, K 0.1…1234, V 0.000000001");
    }
}
