//! x86-64: one file per instruction set, and the proofs that this machine has it.
//!
//! A token such as [`Avx512`] can only be had from its `detect`, so holding one is the permission that a call into a
//! `#[target_feature]` function needs. The feature lists stand twice, here and in the attributes; a test compares them.

mod avx2;
mod avx512;
mod avx512_attention;
mod key_block;
mod lanes;

pub(super) use self::avx2::ENTRY as AVX2;
pub(super) use self::avx512::ENTRY as AVX512;

/// Proof of AVX2 and FMA.
#[derive(Clone, Copy)]
pub(super) struct Avx2 {
    _private: (),
}

impl Avx2 {
    /// The token, if this machine has the instructions and the operating system saves their registers.
    pub(super) fn detect() -> Option<Avx2> {
        let present = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        present.then_some(Avx2 { _private: () })
    }
}

/// Proof of AVX-512 F, BW, VL and DQ.
#[derive(Clone, Copy)]
pub(super) struct Avx512 {
    _private: (),
}

impl Avx512 {
    /// The token, if this machine has the instructions and the operating system saves their registers.
    pub(super) fn detect() -> Option<Avx512> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        present.then_some(Avx512 { _private: () })
    }
}

#[cfg(test)]
mod tests {
    /// A feature that an attribute enables but `detect` does not ask for would be undefined behaviour on some machine.
    #[test]
    fn attributes_enable_only_what_detect_asks_for() {
        let detect = include_str!("mod.rs").split("mod tests").next().unwrap();
        let sources = [
            include_str!("avx2.rs"),
            include_str!("avx512.rs"),
            include_str!("avx512_attention.rs"),
            include_str!("key_block.rs"),
            include_str!("lanes.rs"),
            include_str!("../decode.rs"),
        ];
        let mut n_attribute = 0;
        for attribute in sources.iter().flat_map(|source| source.split("#[target_feature(enable = \"").skip(1)) {
            n_attribute += 1;
            for feature in attribute.split('"').next().unwrap().split(',') {
                assert!(detect.contains(&format!("detected!(\"{feature}\")")), "{feature} is enabled but not detected");
            }
        }
        assert!(n_attribute > 5, "the attributes were not found");
    }
}
