//! The planted damage: kinds, and for each the strengths from weak to strong.

use kvgauge::selftest::Rung;
use kvgauge::setup::Arm;
use kvgauge::targets::planted::OUTPUT_DAMAGE;
use kvgauge::targets::scripted::{Damage, DamageKind};

use crate::engine_settings::{EngineArgs, EngineSettings, Switch};
use crate::failure::Failure;
use crate::settings::DEFAULT_BASELINE;

/// Noise on stored keys, signal-to-noise ratio of each row in dB: from a tenth of a row's magnitude to all of it.
const K_NOISE_DB: [i32; 4] = [20, 10, 5, 0];

/// Values are averaged over the attended positions, which takes noise away: more of it is needed.
const V_NOISE_DB: [i32; 4] = [10, 0, -5, -10];

/// Added to every 8th dimension of the keys before RoPE. The codec's scale then follows the outlier, and its steps are too wide
/// for the rest.
const KEY_BIAS: [i32; 3] = [4, 16, 64];

/// A codec whose scale follows the largest value of a row, so that outliers matter.
const KEY_BIAS_DTYPE: &str = "int8_per_token_head";

/// Shares of the answers that are damaged, in percent. They cost nothing: the baseline's answers are on record.
const OUTPUT_PERCENT: [u32; 4] = [10, 25, 50, 100];

const OUTPUT_KINDS: [DamageKind; 3] = [DamageKind::EarlyStop, DamageKind::Swap, DamageKind::Loop];

/// One rung with the arm that has its damage.
pub(super) struct Step {
    pub(super) rung: Rung,
    pub(super) arm: Arm,
    pub(super) treatment: Treatment,
}

/// How the damage is done.
pub(super) enum Treatment {
    /// In the cache, by the engine.
    Cache(Box<EngineSettings>),
    /// In the answers on record.
    Output(Damage),
}

/// Every rung. A scripted model has no cache to damage.
pub(super) fn ladder(has_cache: bool) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    if has_cache {
        for (kind, strengths) in [("k_noise", K_NOISE_DB), ("v_noise", V_NOISE_DB)] {
            for db in strengths {
                steps.push(faulty(kind, &format!("{db} dB"), DEFAULT_BASELINE, &format!("{kind}={db}"))?);
            }
        }
        for bias in KEY_BIAS {
            steps.push(faulty("key_bias", &bias.to_string(), KEY_BIAS_DTYPE, &format!("key_bias={bias}"))?);
        }
        steps.extend(int4()?);
    }
    for kind in OUTPUT_KINDS {
        steps.extend(OUTPUT_PERCENT.map(|percent| output(kind, percent)));
    }
    Ok(steps)
}

fn faulty(kind: &str, strength: &str, dtype: &str, fault: &str) -> Result<Step, Failure> {
    let args = EngineArgs { kv_fault: Some(vec![fault.into()]), ..EngineArgs::default() };
    cached(kind, strength, dtype, &args, true)
}

/// What a real four-bit codec does, with and without the rotation that spreads outliers. How much that is, is the model's
/// business.
fn int4() -> Result<Vec<Step>, Failure> {
    let with = |rotation| EngineArgs { int4_rotation: Some(rotation), ..EngineArgs::default() };
    Ok(vec![
        cached("int4_per_token_head", "rotated", "int4_per_token_head", &with(Switch::On), false)?,
        cached("int4_per_token_head", "plain", "int4_per_token_head", &with(Switch::Off), false)?,
    ])
}

fn cached(kind: &str, strength: &str, dtype: &str, args: &EngineArgs, must_be_found: bool) -> Result<Step, Failure> {
    let settings = EngineSettings::new(args, &EngineArgs::default())?;
    let arm = settings.applied_to(Arm::candidate(dtype));
    let rung = Rung { kind: kind.into(), strength: strength.into(), arm: arm.name.clone(), must_be_found };
    Ok(Step { rung, arm, treatment: Treatment::Cache(Box::new(settings)) })
}

fn output(kind: DamageKind, percent: u32) -> Step {
    let damage = Damage { kind, bin: None, rate: f64::from(percent) / 100.0 };
    let mut arm = Arm::candidate(DEFAULT_BASELINE);
    arm.name = format!("{}+{damage}", arm.name);
    arm.settings.insert(OUTPUT_DAMAGE.into(), damage.to_string());
    let rung =
        Rung { kind: kind.name().into(), strength: format!("{percent} %"), arm: arm.name.clone(), must_be_found: true };
    Step { rung, arm, treatment: Treatment::Output(damage) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rung_has_an_arm_and_a_strength_of_its_own() {
        let steps = ladder(true).unwrap();
        let arms: BTreeSet<&str> = steps.iter().map(|step| step.arm.name.as_str()).collect();
        let strengths: BTreeSet<(&str, &str)> =
            steps.iter().map(|step| (step.rung.kind.as_str(), step.rung.strength.as_str())).collect();
        assert_eq!((arms.len(), strengths.len()), (steps.len(), steps.len()));
        assert!(arms.contains("bfloat16+k_noise=20") && arms.contains("bfloat16+early_stop=0.25"), "{arms:?}");
        let dry = ladder(false).unwrap();
        assert!(dry.iter().all(|step| matches!(step.treatment, Treatment::Output(_))) && dry.len() >= 9);
    }

    #[test]
    fn ladders_rise() {
        let falls = |values: &[i32]| values.windows(2).all(|pair| pair[0] > pair[1]);
        assert!(falls(&K_NOISE_DB) && falls(&V_NOISE_DB));
        assert!(KEY_BIAS.is_sorted() && OUTPUT_PERCENT.is_sorted());
    }
}
