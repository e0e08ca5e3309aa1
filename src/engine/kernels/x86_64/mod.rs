//! x86-64: one file per instruction set, and the proofs that this machine has it.
//!
//! A token such as [`Avx512`] can only be had from its `detect`, so holding one is the permission that a call into a
//! `#[target_feature]` function needs. The feature lists stand twice, here and in the attributes; a test compares them.
#![expect(unsafe_code, reason = "reading which state the operating system saves, and asking it for tile permission")]

mod amx;
mod amx_attention;
mod avx2;
mod avx512;
mod avx512_attention;
mod avx512_blocks;
mod byte_tables;
mod codes;
mod emulated;
mod key_block;
mod lanes;
pub(super) mod peak;
mod prefetch;
mod tiles;

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

pub(super) use self::amx::ENTRY as AMX;
#[cfg(test)]
pub(super) use self::amx::emulated as emulated_amx;
pub(super) use self::avx2::ENTRY as AVX2;
pub(super) use self::avx512::ENTRY as AVX512;
pub(super) use self::codes::lut8_to_bf16;
pub(super) use self::emulated::attend_emulated;
pub(super) use self::prefetch::prefetch;

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

/// Proof of AVX-512 F, BW and VBMI.
#[derive(Clone, Copy)]
pub(super) struct Vbmi {
    _private: (),
}

impl Vbmi {
    /// The token, if this machine has the instructions and the operating system saves their registers.
    pub(super) fn detect() -> Option<Vbmi> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi");
        present.then_some(Vbmi { _private: () })
    }
}

/// Proof of AMX tiles with BF16 products, and of the operating system's permission to use them.
#[derive(Clone, Copy)]
pub(super) struct Amx {
    _private: (),
}

impl Amx {
    /// The token, or what is missing. The permission is asked for here, once; it holds for all threads of the process.
    pub(super) fn detect() -> Result<Amx, &'static str> {
        const LEAF_FEATURES: u32 = 7;
        const EDX_AMX_BF16: u32 = 1 << 22;
        const EDX_AMX_TILE: u32 = 1 << 24;
        // Tile configuration and tile data in XCR0.
        const XCR0_TILES: u64 = 1 << 17 | 1 << 18;
        if __cpuid(0).eax < LEAF_FEATURES {
            return Err("this CPU has no AMX");
        }
        let features = __cpuid_count(LEAF_FEATURES, 0).edx;
        if features & EDX_AMX_TILE == 0 || features & EDX_AMX_BF16 == 0 {
            return Err("this CPU has no AMX with BF16 products");
        }
        if !is_x86_feature_detected!("xsave") {
            return Err("the operating system does not save extended registers");
        }
        // SAFETY: xsave was detected, which says that XGETBV exists and that the operating system has enabled it.
        let saved = unsafe { enabled_state() };
        if saved & XCR0_TILES != XCR0_TILES {
            return Err("the operating system does not save AMX tiles");
        }
        request_tile_permission()?;
        Ok(Amx { _private: () })
    }
}

#[target_feature(enable = "xsave")]
fn enabled_state() -> u64 {
    // SAFETY: register 0 (XCR0) exists wherever XGETBV does.
    unsafe { _xgetbv(0) }
}

/// Tile data is large, so Linux hands it out only to processes that ask.
#[cfg(target_os = "linux")]
fn request_tile_permission() -> Result<(), &'static str> {
    const SYS_ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let status: isize;
    // SAFETY: arch_prctl with this code takes two integers and touches no memory of the process; the kernel clobbers rcx and
    // r11, which are declared. On failure it returns a negative error number and changes nothing.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if status == 0 { Ok(()) } else { Err("the kernel refused permission for AMX tiles") }
}

#[cfg(not(target_os = "linux"))]
fn request_tile_permission() -> Result<(), &'static str> {
    Err("AMX tiles are only asked for on Linux")
}

#[cfg(test)]
mod tests {
    /// A feature that an attribute enables but `detect` does not ask for would be undefined behaviour on some machine.
    #[test]
    fn attributes_enable_only_what_detect_asks_for() {
        let detect = include_str!("mod.rs").split("mod tests").next().unwrap();
        let sources = [
            include_str!("amx.rs"),
            include_str!("amx_attention.rs"),
            include_str!("avx2.rs"),
            include_str!("avx512.rs"),
            include_str!("avx512_attention.rs"),
            include_str!("avx512_blocks.rs"),
            include_str!("key_block.rs"),
            include_str!("lanes.rs"),
            include_str!("peak.rs"),
            include_str!("tiles.rs"),
            include_str!("codes.rs"),
            include_str!("byte_tables.rs"),
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
