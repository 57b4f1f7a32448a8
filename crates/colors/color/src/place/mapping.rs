//! Obstacles to moving pages into a mapping, read from `/proc/PID/maps`.

use std::fs;

use superhue_model::VirtAddr;
use superhue_procfs::process::parse_named_maps;

use super::Refusal;

/// Returns the obstacle that the mapping at `address` shows; called only after the kernel refused without a reason (`EINVAL`).
pub(super) fn obstacle_at(address: VirtAddr) -> Refusal {
    // `thread-self`: the thread that began the process may have ended.
    let text = fs::read("/proc/thread-self/maps").unwrap_or_default();
    let maps = parse_named_maps(&text).unwrap_or_default();
    let found = maps
        .iter()
        .find(|it| (it.vma.range.start..it.vma.range.end).contains(&address));
    match found {
        Some(it) if it.part.object.inode != 0 => Refusal::NotAnonymous,
        Some(it) => match it.permissions {
            [_, _, _, b's'] => Refusal::NotAnonymous,
            [b'r', b'w', b'-', _] => Refusal::Locked,
            _ => Refusal::Protected,
        },
        None => Refusal::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_not_anonymous_and_what_is_not_mapped_has_changed() {
        let code = VirtAddr(obstacle_at as *const () as u64);
        assert_eq!(obstacle_at(code), Refusal::NotAnonymous);
        assert_eq!(obstacle_at(VirtAddr(4096)), Refusal::Changed);
        let stack = 0_u64;
        let stack = VirtAddr(std::ptr::from_ref(&stack) as u64);
        assert_eq!(obstacle_at(stack), Refusal::Locked);
    }
}
