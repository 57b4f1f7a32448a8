//! TLBs as Intel reports them: leaf 0x18, or descriptors in leaf 2.
//!
//! This module decodes both. A general decoder that walks as many subleaves as leaf 0x18 reports
//! would loop four billion times on a bad answer. One that stops at the first descriptor
//! it does not know would lose the descriptors behind it.

use super::descriptors::{SEE_LEAF_18, described_by};
use super::{PageSizes, TlbArray, TlbKind, TlbWays};
use crate::hardware::Cpuid;

/// Maximum number of subleaves of leaf 0x18; processors have about ten.
const MOST_SUBLEAVES: u32 = 64;

/// Reads leaf 0x18 if it describes any TLB, else leaf 2.
pub(super) fn arrays(cpuid: &Cpuid) -> Vec<TlbArray> {
    let highest = cpuid.ask(0, 0).unwrap_or_default().eax;
    if highest >= 0x18 {
        let arrays = parameters(cpuid);
        if !arrays.is_empty() {
            return arrays;
        }
    }
    if highest >= 2 {
        descriptors(cpuid)
    } else {
        Vec::new()
    }
}

/// Decodes leaf 0x18: one subleaf per array. EAX of subleaf 0 is the highest subleaf; those in between may
/// be empty.
fn parameters(cpuid: &Cpuid) -> Vec<TlbArray> {
    let highest = cpuid
        .ask(0x18, 0)
        .unwrap_or_default()
        .eax
        .min(MOST_SUBLEAVES);
    let array = |subleaf| {
        let answer = cpuid.ask(0x18, subleaf)?;
        let kind = match answer.edx & 0x1f {
            1 => TlbKind::Data,
            2 => TlbKind::Instruction,
            3 => TlbKind::Unified,
            4 => TlbKind::Load,
            5 => TlbKind::Store,
            _ => return None,
        };
        let has = |bit: u32| answer.ebx & (1 << bit) != 0;
        // Bit 2 is 4 MiB pages, which no 64-bit kernel uses.
        let pages = PageSizes {
            k4: has(0),
            m2: has(1),
            g1: has(3),
        };
        let ways = u16::try_from(answer.ebx >> 16)
            .ok()
            .filter(|&ways| ways > 0)?;
        let full = answer.edx & (1 << 8) != 0;
        Some(TlbArray {
            level: (answer.edx >> 5) & 7,
            kind,
            pages,
            entries: u32::from(ways).saturating_mul(answer.ecx.max(1)),
            ways: Some(if full {
                TlbWays::Full
            } else {
                TlbWays::Exactly(ways)
            }),
        })
    };
    (0..=highest).filter_map(array).collect()
}

/// Decodes leaf 2: a descriptor in each byte of the registers whose highest bit is clear, except the lowest
/// byte of EAX.
fn descriptors(cpuid: &Cpuid) -> Vec<TlbArray> {
    let answer = cpuid.ask(2, 0).unwrap_or_default();
    let registers = [answer.eax & !0xff, answer.ebx, answer.ecx, answer.edx];
    registers
        .into_iter()
        .filter(|register| register >> 31 == 0)
        .flat_map(u32::to_le_bytes)
        .filter(|&descriptor| descriptor != SEE_LEAF_18)
        .flat_map(described_by)
        .collect()
}
