//! Arms that are the same measurement under another name: `fp8` and `fp8_e4m3`, or a backend that was asked for and would have
//! been taken anyway. A deterministic engine gives them the same results to the last bit, so they are one test, and to
//! count them twice would make every other drop harder to prove.

use crate::compare::{ArmComparison, Comparison};
use crate::gate::validity::is_deterministic;

/// Per candidate the index of the first one that is the same measurement: its own where there is none before it.
pub(super) fn originals(comparison: &Comparison) -> Vec<usize> {
    let arms = &comparison.candidates;
    (0..arms.len()).map(|arm| (0..arm).find(|other| is_same(&arms[*other], &arms[arm])).unwrap_or(arm)).collect()
}

/// Equal facts in effect and equal results on a deterministic engine. On a server, equal results are a coincidence of
/// independent runs, and each of them is a test.
fn is_same(left: &ArmComparison, right: &ArmComparison) -> bool {
    is_deterministic(&left.summary)
        && left.summary.resolved == right.summary.resolved
        && left.tasks == right.tasks
        && left.groups == right.groups
        && left.symptoms == right.symptoms
        && left.treatment.kv_bytes_per_token == right.treatment.kv_bytes_per_token
        && left.treatment.nll_pairs == right.treatment.nll_pairs
        && left.treatment.nll_different == right.treatment.nll_different
}

#[cfg(test)]
mod tests {
    use crate::compare::compare;
    use crate::compare::fixtures::{manifest, sample};
    use crate::gate::{Ruling, judge};
    use crate::record::Record;
    use crate::setup::{Arm, Evidence};
    use crate::suite::GatePolicy;

    fn record(arm: Arm, wrong: u32) -> Record {
        let shift = if arm.kv_cache_dtype == "bfloat16" { 0.0 } else { 0.001 };
        let mut samples: Vec<_> = (0..60).map(|index| sample("needle", 2048, index, index >= wrong)).collect();
        for sample in &mut samples {
            let nll = &mut sample.completion.as_mut().unwrap().answer_nll;
            *nll = nll.map(|nll| nll + shift);
        }
        let mut manifest = manifest(arm, 60);
        manifest.resolved.kv_cache_dtype =
            Evidence::known(manifest.arm.kv_cache_dtype.replace("fp8_e4m3", "fp8"), "test");
        Record { manifest, samples }
    }

    #[test]
    fn one_cache_under_four_names_is_one_test() {
        let base = record(Arm::baseline("bfloat16"), 0);
        let named = |name: &str, dtype: &str| Arm { name: name.into(), ..Arm::candidate(dtype) };
        let arms: Vec<Record> = [("fp8", "fp8"), ("fp8_e4m3", "fp8_e4m3"), ("fp8@NATIVE", "fp8"), ("b", "fp8_e4m3")]
            .map(|(name, dtype)| record(named(name, dtype), 5))
            .to_vec();
        let judged = |arms: &[Record]| judge(&compare(&base, None, arms).unwrap(), &GatePolicy::default()).unwrap();
        let verdict = judged(&arms);
        for arm in &verdict.arms {
            assert_eq!((arm.ruling, arm.cells[0].adjusted_p), (Ruling::Regressed, Some(1.0 / 32.0)), "{}", arm.arm);
        }
        // Another result, or another fact in effect, is another test.
        let mut other = arms.clone();
        other[3].manifest.resolved.kv_scales = Evidence::known("random".into(), "test");
        assert_eq!(judged(&other).arms[0].cells[0].adjusted_p, Some(2.0 / 32.0));
        // On a server every run has its own noise.
        let mut servers = arms;
        servers.iter_mut().for_each(|arm| {
            arm.manifest.resolved.engine = Evidence::known("vLLM 0.33.0".into(), "/version");
        });
        let alone = judged(&servers[..1]).arms[0].cells[0].adjusted_p.unwrap();
        assert!(judged(&servers).arms[0].cells[0].adjusted_p.unwrap() > alone);
    }
}
