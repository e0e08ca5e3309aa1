//! How rotary angles are stretched, and the parameters from which that follows.

use std::f64::consts::PI;
use std::fmt;

use serde::Deserialize;

use crate::engine::config::{ConfigError, MAX_CONTEXT, unsupported};

/// RoPE types that can be run.
pub const ROPE_TYPES: &[&str] = &["default", "linear", "dynamic", "ntk", "yarn", "llama3"];

/// Scaling by more than this turns every angle into noise.
const MAX_ROPE_FACTOR: f64 = 4096.0;
/// Rotations over the trained context; published values are 1 to 32.
const MAX_BETA: f64 = 65_536.0;
/// A factor on the angles' cosines scales attention by its square; published values are below 2.
const MAX_ATTENTION_FACTOR: f64 = 64.0;
/// YaRN's own choice, Peng et al. 2023.
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

/// How rotary angles are stretched for contexts longer than trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Positions are divided by `factor`.
    Linear {
        /// New length over trained length.
        factor: f64,
    },
    /// The base becomes `theta · factor^(d/(d−2))`: slow dimensions stretch, fast ones stay ("NTK-aware" scaling).
    Ntk {
        /// New length over trained length.
        factor: f64,
    },
    /// The base becomes `theta · (factor² − factor + 1)^(d/(d−2))`: "dynamic NTK" at its full length, as vLLM fixes it.
    /// A base that grew with the sequence would turn keys that are in the cache already.
    Dynamic {
        /// New length over trained length.
        factor: f64,
    },
    /// Dimensions that turn seldom are divided by `factor`, those that turn often stay, with a ramp between. Peng et al. 2023.
    Yarn {
        /// New length over trained length.
        factor: f64,
        /// Context length before stretching.
        original_context: usize,
        /// Dimensions with more turns over the original context stay.
        beta_fast: f64,
        /// Dimensions with fewer turns are divided by `factor`.
        beta_slow: f64,
        /// Multiplies Q and K.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// The same idea with a ramp in the wavelength, as in Llama 3.1.
    Llama3 {
        /// New length over trained length.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are stretched.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` stay.
        high_freq_factor: f64,
        /// Context length before stretching.
        original_context: usize,
    },
    /// Frequencies are divided by [`rope_factors`](crate::engine::ModelConfig::rope_factors), which only some files have.
    PerDimension,
}

impl RopeScaling {
    /// Whether its numbers are usable; callers may build a value themselves.
    pub fn validate(self) -> Result<(), ConfigError> {
        let above_zero = f64::MIN_POSITIVE;
        match self {
            Self::Default | Self::PerDimension => Ok(()),
            Self::Linear { factor } | Self::Ntk { factor } => within("factor", factor, above_zero, MAX_ROPE_FACTOR),
            Self::Dynamic { factor } => within("factor", factor, 1.0, MAX_ROPE_FACTOR),
            Self::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, .. } => {
                within("factor", factor, 1.0, MAX_ROPE_FACTOR)?;
                within("original context", original_context as f64, 1.0, MAX_CONTEXT as f64)?;
                within("beta_slow", beta_slow, above_zero, MAX_BETA)?;
                within("beta_fast", beta_fast, beta_slow, MAX_BETA)?;
                within("attention factor", attention_factor, above_zero, MAX_ATTENTION_FACTOR)
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                within("factor", factor, 1.0, MAX_ROPE_FACTOR)?;
                within("original context", original_context as f64, 1.0, MAX_CONTEXT as f64)?;
                within("low_freq_factor", low_freq_factor, above_zero, MAX_BETA)?;
                within("high_freq_factor", high_freq_factor, low_freq_factor, MAX_BETA)?;
                if high_freq_factor > low_freq_factor {
                    return Ok(());
                }
                let problem = "must be above low_freq_factor".into();
                let (key, found) = ("rope high_freq_factor".into(), high_freq_factor.to_string());
                Err(ConfigError::Invalid { key, found, problem })
            }
        }
    }

    /// `[head_dim / 2]` frequencies in turns of one radian per position, in f64: an f32 angle is off by a thousandth of a
    /// turn at position 128K. `factors` belong to [`RopeScaling::PerDimension`].
    pub(in crate::engine) fn frequencies(self, head_dim: usize, theta: f64, factors: &[f32]) -> Vec<f64> {
        let d = head_dim as f64;
        let plain = |theta: f64| (0..head_dim / 2).map(move |i| theta.powf(-2.0 * i as f64 / d));
        let exponent = d / (d - 2.0);
        match self {
            Self::Default => plain(theta).collect(),
            Self::Linear { factor } => plain(theta).map(|frequency| frequency / factor).collect(),
            Self::Ntk { factor } => plain(theta * factor.powf(exponent)).collect(),
            Self::Dynamic { factor } => plain(theta * (factor * factor - (factor - 1.0)).powf(exponent)).collect(),
            Self::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
                // The dimension that turns `n` times over the original context.
                let turning = |n: f64| d * (original_context as f64 / (n * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let (low, high) = (turning(beta_fast), turning(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(d - 1.0));
                let width = if high == low { 0.001 } else { high - low };
                let stretched = |i: usize| ((i as f64 - low) / width).clamp(0.0, 1.0);
                let mixed = |(i, frequency): (usize, f64)| {
                    let share = stretched(i);
                    frequency / factor * share + frequency * (1.0 - share)
                };
                plain(theta).enumerate().map(mixed).collect()
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let stretch = |frequency: f64| {
                    let turns = original_context as f64 * frequency / (2.0 * PI);
                    let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    frequency / factor * (1.0 - kept) + frequency * kept
                };
                plain(theta).map(stretch).collect()
            }
            Self::PerDimension => {
                plain(theta).zip(factors).map(|(frequency, factor)| frequency / f64::from(*factor)).collect()
            }
        }
    }

    /// What cosines and sines are multiplied with.
    pub(in crate::engine) fn amplitude(self) -> f64 {
        if let Self::Yarn { attention_factor, .. } = self { attention_factor } else { 1.0 }
    }
}

fn within(key: &str, found: f64, least: f64, most: f64) -> Result<(), ConfigError> {
    if found >= least && found <= most {
        return Ok(());
    }
    let least = if least == f64::MIN_POSITIVE { "above 0".into() } else { format!("at least {least}") };
    let (key, found) = (format!("rope {key}"), found.to_string());
    Err(ConfigError::Invalid { key, found, problem: format!("must be {least} and at most {most}") })
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Linear { factor } => write!(f, "linear, factor {factor}"),
            Self::Ntk { factor } => write!(f, "ntk, factor {factor}"),
            Self::Dynamic { factor } => write!(f, "dynamic, factor {factor}"),
            Self::Yarn { factor, original_context, .. } => write!(f, "yarn, factor {factor} over {original_context}"),
            Self::Llama3 { factor, original_context, .. } => {
                write!(f, "llama3, factor {factor} over {original_context}")
            }
            Self::PerDimension => write!(f, "one factor per dimension"),
        }
    }
}

/// RoPE as files describe it, in Hugging Face's names and both of its spellings.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in crate::engine::config) struct RopeParameters {
    pub(in crate::engine::config) rope_theta: Option<f64>,
    pub(in crate::engine::config) rope_type: Option<String>,
    /// The older name of `rope_type`.
    #[serde(rename = "type")]
    pub(in crate::engine::config) older_type: Option<String>,
    pub(in crate::engine::config) factor: Option<f64>,
    pub(in crate::engine::config) partial_rotary_factor: Option<f64>,
    pub(in crate::engine::config) original_max_position_embeddings: Option<usize>,
    pub(in crate::engine::config) attention_factor: Option<f64>,
    pub(in crate::engine::config) mscale: Option<f64>,
    pub(in crate::engine::config) mscale_all_dim: Option<f64>,
    pub(in crate::engine::config) beta_fast: Option<f64>,
    pub(in crate::engine::config) beta_slow: Option<f64>,
    pub(in crate::engine::config) truncate: Option<bool>,
    pub(in crate::engine::config) low_freq_factor: Option<f64>,
    pub(in crate::engine::config) high_freq_factor: Option<f64>,
    /// Where layers of different kinds have parameters of their own.
    pub(in crate::engine::config) full_attention: Option<Box<RopeParameters>>,
    pub(in crate::engine::config) sliding_attention: Option<Box<RopeParameters>>,
}

impl RopeParameters {
    /// Those of the layers that attend to everything, where windowed layers have their own.
    pub(super) fn global(&self) -> &Self {
        self.full_attention.as_deref().unwrap_or(self)
    }

    /// The scaling; `trained_context` stands in where no original context is given.
    pub(in crate::engine::config) fn scaling(&self, trained_context: usize) -> Result<RopeScaling, ConfigError> {
        if let Some(share) = self.partial_rotary_factor.filter(|share| *share != 1.0) {
            return Err(unsupported("value", &format!("partial_rotary_factor = {share}"), &["1"]));
        }
        let rope_type = self.rope_type.as_deref().or(self.older_type.as_deref()).unwrap_or("default");
        let needed =
            |key: &str, value: Option<f64>| value.ok_or_else(|| ConfigError::Missing { key: format!("rope {key}") });
        let factor = || needed("factor", self.factor);
        let original_context = self.original_max_position_embeddings;
        let scaling = match rope_type {
            "default" | "none" => RopeScaling::Default,
            "linear" => RopeScaling::Linear { factor: factor()? },
            "ntk" => RopeScaling::Ntk { factor: factor()? },
            "dynamic" => RopeScaling::Dynamic { factor: factor()? },
            "yarn" => RopeScaling::Yarn {
                factor: factor()?,
                original_context: original_context.unwrap_or(trained_context),
                beta_fast: self.beta_fast.unwrap_or(BETA_FAST),
                beta_slow: self.beta_slow.unwrap_or(BETA_SLOW),
                attention_factor: self.yarn_attention_factor(factor()?),
                truncate: self.truncate.unwrap_or(true),
            },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: needed("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: needed("high_freq_factor", self.high_freq_factor)?,
                original_context: original_context
                    .ok_or_else(|| ConfigError::Missing { key: "rope original_max_position_embeddings".into() })?,
            },
            other => return Err(unsupported("rope type", other, ROPE_TYPES)),
        };
        scaling.validate()?;
        Ok(scaling)
    }

    /// As given, else `0.1 · mscale · ln(factor) + 1`, as a ratio where a second multiplier is given.
    fn yarn_attention_factor(&self, factor: f64) -> f64 {
        let of = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        // 0 counts as not given, as in the software that writes these files.
        let given = |mscale: Option<f64>| mscale.filter(|mscale| *mscale != 0.0);
        self.attention_factor.unwrap_or_else(|| match (given(self.mscale), given(self.mscale_all_dim)) {
            (Some(mscale), Some(all)) => of(mscale) / of(all),
            _ => of(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(parameters: serde_json::Value) -> Result<RopeScaling, ConfigError> {
        serde_json::from_value::<RopeParameters>(parameters).unwrap().scaling(512)
    }

    fn frequencies(scaling: RopeScaling) -> Vec<f64> {
        scaling.frequencies(64, 10_000.0, &[])
    }

    #[test]
    fn linear_and_ntk_stretch_as_defined() {
        let plain = frequencies(RopeScaling::Default);
        let linear = frequencies(RopeScaling::Linear { factor: 4.0 });
        let ntk = frequencies(RopeScaling::Ntk { factor: 4.0 });
        assert!(plain.iter().zip(&linear).all(|(a, b)| (a / 4.0 - b).abs() < 1e-15));
        assert_eq!(ntk[0], 1.0, "the fastest dimension is not touched");
        assert!((ntk[31] - plain[31] / 4.0).abs() < 1e-12, "the slowest is stretched by the factor");
        let dynamic = frequencies(RopeScaling::Dynamic { factor: 4.0 });
        assert!((dynamic[31] - plain[31] / 13.0).abs() < 1e-12, "13 = 4² − 4 + 1");
    }

    #[test]
    fn ramps_keep_fast_dimensions_and_stretch_slow_ones() {
        let plain = frequencies(RopeScaling::Default);
        let yarn = read(json!({"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096})).unwrap();
        let llama3 = read(json!({"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 4096,
            "low_freq_factor": 1, "high_freq_factor": 4}));
        for scaling in [yarn, llama3.unwrap()] {
            let stretched = frequencies(scaling);
            assert_eq!(stretched[0], plain[0]);
            assert!((stretched[31] - plain[31] / 8.0).abs() < 1e-15, "{scaling}");
            let ratios: Vec<f64> = plain.iter().zip(&stretched).map(|(a, b)| a / b).collect();
            assert!(ratios.is_sorted() && ratios.iter().any(|ratio| *ratio > 1.1 && *ratio < 7.9), "{ratios:?}");
        }
        // Truncated, the ramp runs from dimension 10 (32 turns) to 23 (1 turn), so 11 is the first that is stretched.
        let whole = frequencies(yarn);
        assert!(whole[10] == plain[10] && whole[11] < plain[11]);
        let exact = json!({"type": "yarn", "factor": 8, "original_max_position_embeddings": 4096, "truncate": false});
        assert!(frequencies(read(exact).unwrap()) != whole);
        let factors: Vec<f32> = (1..=32).map(|i| i as f32).collect();
        let divided = RopeScaling::PerDimension.frequencies(64, 10_000.0, &factors);
        assert!((divided[7] - plain[7] / 8.0).abs() < 1e-15);
    }

    #[test]
    fn yarn_scales_attention_by_its_factor() {
        let amplitude = |mut more: serde_json::Value| {
            more["rope_type"] = "yarn".into();
            more["factor"] = 4.into();
            read(more).unwrap().amplitude()
        };
        assert!((amplitude(json!({})) - (0.1 * 4_f64.ln() + 1.0)).abs() < 1e-12);
        assert_eq!(amplitude(json!({"attention_factor": 1.5})), 1.5);
        assert_eq!(amplitude(json!({"mscale": 0.7, "mscale_all_dim": 0.7})), 1.0);
        assert_eq!(read(json!({"rope_type": "linear", "factor": 4})).unwrap().amplitude(), 1.0);
    }

    #[test]
    fn unusable_numbers_are_refused() {
        let llama3 = |low: f64, high: f64| {
            json!({"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 64,
                "low_freq_factor": low, "high_freq_factor": high})
        };
        for parameters in [
            json!({"type": "linear", "factor": 0}),
            json!({"type": "linear", "factor": 1e300}),
            json!({"type": "dynamic", "factor": 0.5}),
            json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 0}),
            json!({"type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 32}),
            json!({"type": "yarn", "factor": 4, "attention_factor": -1}),
            llama3(4.0, 4.0),
            llama3(0.0, 4.0),
        ] {
            let text = parameters.to_string();
            assert!(matches!(read(parameters), Err(ConfigError::Invalid { .. })), "{text}");
        }
        for parameters in [json!({"type": "linear"}), json!({"type": "llama3", "factor": 8})] {
            assert!(matches!(read(parameters), Err(ConfigError::Missing { .. })));
        }
        let message = read(json!({"rope_type": "longrope"})).unwrap_err().to_string();
        assert!(message.contains("`longrope`") && message.ends_with(&ROPE_TYPES.join(", ")), "{message}");
        assert!(RopeScaling::Ntk { factor: f64::NAN }.validate().is_err());
    }
}
