//! Tile registers: eight of 16 rows × 64 bytes, as the AMX unit or as plain memory that follows the same rules.
//!
//! The kernel is written once over [`TileOps`]. The emulation runs it on machines without the unit, which proves packing,
//! tile configuration and loops there, and checks the real unit when a machine starts.
#![expect(unsafe_code, reason = "tile instructions, and calls of functions that a token proves to be executable")]

use std::arch::asm;
use std::marker::PhantomData;

use super::{Amx, Avx512};
use crate::engine::kernels::packed::unpack_pair;
use crate::engine::kernels::{TILE_OUT, TileLine};

/// Rows of a tile register.
pub(super) const TILE_ROWS: usize = 16;

/// A 16 × 16 block of f32 sums: one tile of a product.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[f32; TILE_OUT]; TILE_ROWS]);

impl Sums {
    /// Nothing summed.
    pub(super) const ZERO: Sums = Sums([[0.0; TILE_OUT]; TILE_ROWS]);
}

/// Operations on the tile registers 0 to 7, all configured by [`TileConfig::FULL`]. A register number above 7 does not
/// assemble.
pub(super) trait TileOps {
    /// Register `T` = 0.
    fn zero<const T: u8>(&mut self);

    /// Register `T` = BF16 pairs of 16 rows.
    fn load<const T: u8>(&mut self, rows: &[TileLine; TILE_ROWS]);

    /// Register `T` = sums.
    fn load_sums<const T: u8>(&mut self, sums: &Sums);

    /// sums = register `T`.
    fn store_sums<const T: u8>(&self, sums: &mut Sums);

    /// Register C `[16, 16]` += A `[16 rows, 16 pairs]` · B `[16 pairs, 16 columns]`.
    fn multiply<const C: u8, const A: u8, const B: u8>(&mut self);
}

/// Something that hands out tile registers for the duration of a call.
pub(super) trait TileUnit: Copy + Send + Sync + 'static {
    /// The registers.
    type Tiles: TileOps;

    /// Name of the kernel on this unit.
    const NAME: &'static str;

    /// Configures the registers.
    fn open(self) -> Self::Tiles;
}

/// Operand of `LDTILECFG`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row of each register; the upper eight entries belong to registers that do not exist.
    row_bytes: [u16; 16],
    /// Rows of each register.
    rows: [u8; 16],
}

impl TileConfig {
    /// Palette 1, eight registers of 16 rows × 64 bytes.
    const FULL: TileConfig = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };
}

const _: () = assert!(size_of::<TileConfig>() == 64, "LDTILECFG reads 64 bytes");
const _: () = assert!(size_of::<[TileLine; TILE_ROWS]>() == 1024, "a tile register holds 16 rows of 64 bytes");
const _: () = assert!(size_of::<Sums>() == 1024, "a tile register holds 16 rows of 64 bytes");

/// The tile registers of the CPU that this thread runs on; configured while this value lives, which cannot leave the thread.
pub(super) struct HardwareTiles {
    _of_this_thread: PhantomData<*const ()>,
}

impl TileUnit for Amx {
    type Tiles = HardwareTiles;

    const NAME: &'static str = "x86_64-bf16-amx";

    fn open(self) -> HardwareTiles {
        // SAFETY: an `Amx` exists, so the CPU has tiles and the operating system has granted their state to this process. The
        // instruction reads the 64 bytes of a valid palette-1 configuration and writes no memory.
        unsafe {
            asm!("ldtilecfg [{config}]", config = in(reg) &TileConfig::FULL, options(nostack, readonly, preserves_flags));
        }
        HardwareTiles { _of_this_thread: PhantomData }
    }
}

impl Drop for HardwareTiles {
    fn drop(&mut self) {
        // SAFETY: a `HardwareTiles` comes from an `Amx`, so the instruction exists; it touches tile state only. No value in a
        // register is lost: the registers can only be reached through `self`.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

impl TileOps for HardwareTiles {
    fn zero<const T: u8>(&mut self) {
        // SAFETY: `self` exists, so the registers are configured; the instruction touches register T alone. Compiled code
        // never allocates tile registers, so none needs to be named as clobbered.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags)) }
    }

    fn load<const T: u8>(&mut self, rows: &[TileLine; TILE_ROWS]) {
        // SAFETY: `self` exists, so register T is 16 rows of 64 bytes; with a stride of 64 exactly the 1,024 bytes of `rows`
        // are read. Compiled code never allocates tile registers.
        unsafe {
            asm!("tileloadd tmm{t}, [{rows} + {stride}*1]", t = const T, rows = in(reg) rows, stride = in(reg) 64usize,
                options(nostack, readonly, preserves_flags));
        }
    }

    fn load_sums<const T: u8>(&mut self, sums: &Sums) {
        // SAFETY: as in `load`, for the 1,024 bytes of `sums`.
        unsafe {
            asm!("tileloadd tmm{t}, [{sums} + {stride}*1]", t = const T, sums = in(reg) sums, stride = in(reg) 64usize,
                options(nostack, readonly, preserves_flags));
        }
    }

    fn store_sums<const T: u8>(&self, sums: &mut Sums) {
        // SAFETY: `self` exists, so register T is 16 rows of 64 bytes; with a stride of 64 exactly the 1,024 bytes of `sums`
        // are written.
        unsafe {
            asm!("tilestored [{sums} + {stride}*1], tmm{t}", t = const T, sums = in(reg) sums, stride = in(reg) 64usize,
                options(nostack, preserves_flags));
        }
    }

    fn multiply<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: `self` exists, so all three registers are configured with matching shapes (16 rows, 16 pairs, 16 columns);
        // the callers name three different ones, as the instruction demands. It touches register C alone.
        unsafe {
            const { assert!(A != B && A != C && B != C, "tdpbf16ps needs three different registers") };
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags));
        }
    }
}

/// A unit in plain memory.
#[derive(Clone, Copy)]
pub(super) struct Emulation(pub(super) Avx512);

/// Registers in plain memory, each with the shape that the configuration gives it.
pub(super) struct EmulatedTiles {
    token: Avx512,
    config: TileConfig,
    registers: Box<[[[u32; 16]; TILE_ROWS]; 8]>,
}

impl TileUnit for Emulation {
    type Tiles = EmulatedTiles;

    const NAME: &'static str = "x86_64-bf16-amx-emulated";

    fn open(self) -> EmulatedTiles {
        let config = TileConfig::FULL;
        assert!(
            config.palette == 1 && config.start_row == 0 && config.reserved == [0; 14],
            "not a valid configuration"
        );
        EmulatedTiles { token: self.0, config, registers: Box::new([[[0; 16]; TILE_ROWS]; 8]) }
    }
}

impl EmulatedTiles {
    /// Rows and 4-byte columns of a register.
    fn shape(&self, register: u8) -> (usize, usize) {
        let register = usize::from(register);
        (usize::from(self.config.rows[register]), usize::from(self.config.row_bytes[register]) / 4)
    }

    /// A load writes the configured rows and columns and clears the rest.
    fn fill(&mut self, register: u8, row: impl Fn(usize) -> [u32; 16]) {
        let (n_row, n_column) = self.shape(register);
        let mut loaded = [[0; 16]; TILE_ROWS];
        for (index, to) in loaded[..n_row].iter_mut().enumerate() {
            to[..n_column].copy_from_slice(&row(index)[..n_column]);
        }
        self.registers[usize::from(register)] = loaded;
    }
}

impl TileOps for EmulatedTiles {
    fn zero<const T: u8>(&mut self) {
        self.fill(T, |_| [0; 16]);
    }

    fn load<const T: u8>(&mut self, rows: &[TileLine; TILE_ROWS]) {
        self.fill(T, |row| rows[row].0);
    }

    fn load_sums<const T: u8>(&mut self, sums: &Sums) {
        self.fill(T, |row| sums.0[row].map(f32::to_bits));
    }

    fn store_sums<const T: u8>(&self, sums: &mut Sums) {
        let (n_row, n_column) = self.shape(T);
        for (to, from) in sums.0.iter_mut().zip(&self.registers[usize::from(T)]).take(n_row) {
            for (to, from) in to.iter_mut().zip(from).take(n_column) {
                *to = f32::from_bits(*from);
            }
        }
    }

    fn multiply<const C: u8, const A: u8, const B: u8>(&mut self) {
        let ((n_row, n_pair), (b_rows, n_column)) = (self.shape(A), self.shape(B));
        assert_eq!((b_rows, (n_row, n_column)), (n_pair, self.shape(C)), "shapes of a product");
        let (a, b) = (self.registers[usize::from(A)], self.registers[usize::from(B)]);
        let Avx512 { .. } = self.token;
        for (sums, a) in self.registers[usize::from(C)].iter_mut().zip(&a).take(n_row) {
            // SAFETY: an `Avx512` exists, so `detect` saw the features that `multiply_row` enables.
            unsafe { multiply_row(sums, &a[..n_pair], &b) }
        }
    }
}

/// One row of `TDPBF16PS` as the instruction manual writes it: even and odd inputs have a sum each, which starts at zero and
/// takes one fused multiply-add per pair in ascending order; their total is then added to the destination. Denormal inputs and results
/// are zero; rounding is to nearest even whatever MXCSR says.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn multiply_row(sums: &mut [u32; 16], a: &[u32], b: &[[u32; 16]; TILE_ROWS]) {
    let mut halves = [[0.0f32; 16]; 2];
    for (a, b) in a.iter().zip(b) {
        for (half, sums) in halves.iter_mut().enumerate() {
            let a = flush(unpack_pair(*a)[half]);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = flush(a.mul_add(flush(unpack_pair(*b)[half]), *sum));
            }
        }
    }
    for (column, sum) in sums.iter_mut().enumerate() {
        let product = flush(halves[0][column] + halves[1][column]);
        *sum = flush(flush(f32::from_bits(*sum)) + product).to_bits();
    }
}

/// Denormals become zero of the same sign.
#[inline]
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}
