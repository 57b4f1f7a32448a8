//! TLBs that old Intel processors name by one-byte descriptors (CPUID leaf 2).
//!
//! The values come from the table of leaf 2 in the Intel SDM, volume 2A, CPUID. Descriptors for 4 MiB
//! pages alone are left out, because no 64-bit kernel uses such pages. The SDM gives a level only to some descriptors. The others have
//! the level they have in the processors that report them: descriptor 0x64 appears beside the smaller
//! 0xa0, so it is a second level.

use super::{PageSizes, TlbArray, TlbKind, TlbWays};

const K4: PageSizes = PageSizes::K4;
const M2: PageSizes = PageSizes::M2;
const G1: PageSizes = PageSizes::G1;
const K4_M2: PageSizes = PageSizes {
    k4: true,
    m2: true,
    g1: false,
};

use TlbKind::{Data, Instruction, Unified};
use TlbWays::{Exactly, Full};

/// Descriptor that means "see leaf 0x18".
pub(super) const SEE_LEAF_18: u8 = 0xfe;

/// Returns the TLBs of a descriptor; none if it describes something else.
pub(super) fn described_by(descriptor: u8) -> Vec<TlbArray> {
    let one = |level, kind, pages, entries, ways| {
        vec![TlbArray {
            level,
            kind,
            pages,
            entries,
            ways,
        }]
    };
    let ways = |n| Some(Exactly(n));
    match descriptor {
        0x01 => one(1, Instruction, K4, 32, ways(4)),
        0x03 => one(1, Data, K4, 64, ways(4)),
        0x4f => one(1, Instruction, K4, 32, None),
        0x50 => one(1, Instruction, K4_M2, 64, None),
        0x51 => one(1, Instruction, K4_M2, 128, None),
        0x52 => one(1, Instruction, K4_M2, 256, None),
        0x55 => one(1, Instruction, M2, 7, Some(Full)),
        0x57 => one(1, Data, K4, 16, ways(4)),
        0x59 => one(1, Data, K4, 16, Some(Full)),
        0x5a => one(1, Data, M2, 32, ways(4)),
        0x5b => one(1, Data, K4, 64, None),
        0x5c => one(1, Data, K4, 128, None),
        0x5d => one(1, Data, K4, 256, None),
        0x61 => one(1, Instruction, K4, 48, Some(Full)),
        0x63 => {
            let mut both = one(1, Data, M2, 32, ways(4));
            both.extend(one(1, Data, G1, 4, ways(4)));
            both
        }
        0x64 => one(2, Data, K4, 512, ways(4)),
        0x6a => one(1, Data, K4, 64, ways(8)),
        0x6b => one(2, Data, K4, 256, ways(8)),
        0x6c => one(2, Data, M2, 128, ways(8)),
        0x6d => one(2, Data, G1, 16, Some(Full)),
        0x76 => one(1, Instruction, M2, 8, Some(Full)),
        0xa0 => one(1, Data, K4, 32, Some(Full)),
        0xb0 => one(1, Instruction, K4, 128, ways(4)),
        0xb1 => one(1, Instruction, M2, 8, ways(4)),
        0xb2 => one(1, Instruction, K4, 64, ways(4)),
        0xb3 => one(1, Data, K4, 128, ways(4)),
        0xb4 => one(2, Data, K4, 256, ways(4)),
        0xb5 => one(1, Instruction, K4, 64, ways(8)),
        0xb6 => one(1, Instruction, K4, 128, ways(8)),
        0xba => one(2, Data, K4, 64, ways(4)),
        0xc0 => one(1, Data, K4, 8, ways(4)),
        0xc1 => one(2, Unified, K4_M2, 1024, ways(8)),
        0xc2 => one(1, Data, K4_M2, 16, ways(4)),
        0xc3 => {
            let mut both = one(2, Unified, K4_M2, 1536, ways(6));
            both.extend(one(2, Unified, G1, 16, ways(4)));
            both
        }
        0xc4 => one(1, Data, M2, 32, ways(4)),
        0xca => one(2, Unified, K4, 512, ways(4)),
        _ => Vec::new(),
    }
}
