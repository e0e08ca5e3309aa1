//! Candidates that are the same cache under two names: `fp8` is `fp8_e4m3` in vLLM, so a run with both has an A/A arm for free.

use serde::{Deserialize, Serialize};

use crate::compare::CompareError;
use crate::compare::pairing::{self, Pair};
use crate::record::{Record, manifest::Manifest};
use crate::setup::canonical_dtype;

/// Two candidates of one cache, the later one against the earlier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// The earlier arm.
    pub first: String,
    /// The one that repeats it.
    pub second: String,
    /// Scored pairs.
    pub pairs: u64,
    /// Right in the first, wrong in the second.
    pub regressions: u64,
    /// The other way round.
    pub fixes: u64,
    /// Pairs with two answers that are not the same text, scored or not.
    pub different_outputs: u64,
    /// Pairs with an answer NLL in both arms that differs.
    pub nll_different: u64,
}

/// Every candidate with the first one before it that was asked for the same cache.
pub(super) fn repeats(candidates: &[Record]) -> Result<Vec<Repeat>, CompareError> {
    let mut repeats = Vec::new();
    for (index, second) in candidates.iter().enumerate() {
        let is_repeated = |first: &&Record| is_same_cache(&first.manifest, &second.manifest);
        if let Some(first) = candidates[..index].iter().find(is_repeated) {
            repeats.push(repeat(first, second)?);
        }
    }
    Ok(repeats)
}

/// Asked for the same dtype and settings, and nothing in effect is known to differ.
fn is_same_cache(first: &Manifest, second: &Manifest) -> bool {
    let (ours, theirs) = (&first.resolved, &second.resolved);
    let agree = |ours: &Option<String>, theirs: &Option<String>| ours.is_none() || theirs.is_none() || ours == theirs;
    let dtype = |value: &Option<String>| value.as_deref().map(canonical_dtype);
    canonical_dtype(&first.arm.kv_cache_dtype) == canonical_dtype(&second.arm.kv_cache_dtype)
        && first.arm.settings == second.arm.settings
        && agree(&dtype(&ours.kv_cache_dtype.value), &dtype(&theirs.kv_cache_dtype.value))
        && agree(&ours.attention_backend.value, &theirs.attention_backend.value)
        && agree(&ours.attention_arithmetic.value, &theirs.attention_arithmetic.value)
        && agree(&ours.kv_scales.value, &theirs.kv_scales.value)
}

fn repeat(first: &Record, second: &Record) -> Result<Repeat, CompareError> {
    let (ours, theirs) = (pairing::Arm::of(first)?, pairing::Arm::of(second)?);
    let pairs = pairing::pair(&ours, &theirs)?;
    let drops =
        |sign: i64| pairs.iter().filter(|pair| pair.scored.is_some_and(|scored| scored.drop() == sign)).count() as u64;
    let differs = |pair: &&Pair<'_>| {
        let nlls = pair.completions().and_then(|(ours, theirs)| ours.answer_nll.zip(theirs.answer_nll));
        nlls.is_some_and(|(ours, theirs)| ours != theirs)
    };
    Ok(Repeat {
        first: ours.name().into(),
        second: theirs.name().into(),
        pairs: pairs.iter().filter(|pair| pair.scored.is_some()).count() as u64,
        regressions: drops(1),
        fixes: drops(-1),
        different_outputs: pairs.iter().filter(|pair| pair.same_text() == Some(false)).count() as u64,
        nll_different: pairs.iter().filter(differs).count() as u64,
    })
}
