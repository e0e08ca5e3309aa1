//! Parameters of tasks: defaults by length of the bin, overrides out of the suite, limits.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::sample::{Bin, Language};

/// A parameter that is not legal: what is wrong, naming its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// What is wrong.
    pub message: String,
}

impl ParamError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// Output tokens reserved in a bin where the suite does not say.
pub fn default_output_reserve(bin: Bin) -> u32 {
    for_bin(bin, [96, 256, 512, 1024, 2048])
}

/// The number for a bin out of a row for 512, 2K, 8K, 32K and 128K: that of the longest of these that is not longer than
/// the bin, so that what fits there fits here. From 256K on it is 128K's times one and a half.
pub(super) fn for_bin(bin: Bin, row: [u32; 5]) -> u32 {
    match bin.tokens() {
        0..2048 => row[0],
        2048..8192 => row[1],
        8192..32_768 => row[2],
        32_768..131_072 => row[3],
        131_072..262_144 => row[4],
        262_144.. => row[4] + row[4] / 2,
    }
}

/// A parameter given once for all bins, or bin by bin: `count = 8` or `count = { 512 = 8, 2K = 20 }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected one value, or a table of values by bin such as `{ 2K = 20, 8K = 40 }`")]
pub(crate) enum PerBin<T> {
    /// By bin; other bins have the default.
    ByBin(BTreeMap<String, T>),
    /// The same everywhere.
    Same(T),
}

impl<T: Copy> PerBin<T> {
    /// The value given for a bin.
    pub(crate) fn get(&self, bin: Bin) -> Option<T> {
        match self {
            Self::Same(value) => Some(*value),
            Self::ByBin(values) => values.iter().find(|(key, _)| key.parse() == Ok(bin)).map(|(_, value)| *value),
        }
    }

    /// Bin as given (`None` for all) and value.
    pub(crate) fn entries(&self) -> Vec<(Option<&str>, T)> {
        match self {
            Self::Same(value) => vec![(None, *value)],
            Self::ByBin(values) => values.iter().map(|(key, value)| (Some(key.as_str()), *value)).collect(),
        }
    }

    /// Checks that the keys are bins.
    pub(super) fn check_bins(this: Option<&Self>, name: &str) -> Result<(), ParamError> {
        for (bin, _) in this.map(Self::entries).unwrap_or_default() {
            if let Some(Err(message)) = bin.map(str::parse::<Bin>) {
                return Err(ParamError::new(format!("params.{name}: {message}")));
            }
        }
        Ok(())
    }
}

impl PerBin<u32> {
    /// Checks keys and limits.
    pub(super) fn check(
        this: Option<&Self>,
        name: &str,
        limits: std::ops::RangeInclusive<u32>,
    ) -> Result<(), ParamError> {
        Self::check_bins(this, name)?;
        match this.map(Self::entries).unwrap_or_default().iter().find(|(_, value)| !limits.contains(value)) {
            None => Ok(()),
            Some((_, value)) => Err(ParamError::new(format!(
                "params.{name} = {value} is not between {} and {}",
                limits.start(),
                limits.end()
            ))),
        }
    }

    /// The value for a bin, or the default of its length.
    pub(super) fn resolve(this: Option<&Self>, bin: Bin, defaults: [u32; 5]) -> usize {
        this.and_then(|given| given.get(bin)).unwrap_or_else(|| for_bin(bin, defaults)) as usize
    }
}

/// What the values of a key look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ValueKind {
    /// Seven decimal digits.
    Digits,
    /// Thirty-two hexadecimal digits.
    Hex,
}

impl ValueKind {
    /// What an instruction calls such a value.
    pub(super) fn noun(self, language: Language) -> &'static str {
        match (self, language) {
            (Self::Digits, Language::En) => "number",
            (Self::Hex, Language::En) => "code",
            (Self::Digits, Language::Zh) => "号码",
            (Self::Hex, Language::Zh) => "代码",
        }
    }
}

/// Reads a task's parameters; unknown keys are errors.
pub(super) fn parse<P: DeserializeOwned>(params: &toml::Table) -> Result<P, ParamError> {
    params.clone().try_into().map_err(|error: toml::de::Error| ParamError::new(error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        count: Option<PerBin<u32>>,
    }

    fn sample(text: &str) -> Result<Sample, ParamError> {
        parse(&toml::from_str(text).unwrap())
    }

    #[test]
    fn a_parameter_is_one_value_or_one_per_bin() {
        let same = sample("count = 7").unwrap();
        assert_eq!(PerBin::resolve(same.count.as_ref(), Bin(2048), [1, 2, 3, 4, 5]), 7);
        let by_bin = sample("count = { 512 = 8, 2K = 20 }").unwrap();
        assert_eq!(PerBin::resolve(by_bin.count.as_ref(), Bin(2048), [1, 2, 3, 4, 5]), 20);
        assert_eq!(PerBin::resolve(by_bin.count.as_ref(), Bin(8192), [1, 2, 3, 4, 5]), 3);
    }

    #[test]
    fn illegal_parameters_name_their_key() {
        assert!(sample("cuont = 7").unwrap_err().message.contains("unknown field `cuont`"));
        assert!(sample("count = \"x\"").unwrap_err().message.contains("by bin"));
        let wrong_bin = sample("count = { 2X = 20 }").unwrap();
        let error = PerBin::check(wrong_bin.count.as_ref(), "count", 1..=9).unwrap_err();
        assert!(error.message.starts_with("params.count: `2X`"), "{error}");
        let large = sample("count = 10").unwrap();
        let error = PerBin::check(large.count.as_ref(), "count", 1..=9).unwrap_err();
        assert_eq!(error.message, "params.count = 10 is not between 1 and 9");
    }

    #[test]
    fn a_bin_between_two_rows_takes_the_shorter() {
        let row = [1, 2, 3, 4, 6];
        let expected = [(256, 1), (512, 1), (2048, 2), (4096, 2), (8192, 3), (65_536, 4), (131_072, 6), (262_144, 9)];
        for (tokens, value) in expected {
            assert_eq!(for_bin(Bin(tokens), row), value, "{tokens}");
        }
    }
}
