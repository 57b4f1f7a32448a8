//! Test on this machine's own colors. Finding them depends on other load, so a failed search is a skip; the
//! assertions need no timing.

use superhue_arena::{ArenaOptions, ColoredArena, Colors, PageCount};
use superhue_testing::{shared, skip};

#[test]
fn memory_in_measured_colors() {
    let _shared = shared();
    // Searching takes minutes where the code is not optimised and the CPUs are busy.
    let colors = match Colors::open_known() {
        Ok(colors) => colors,
        Err(error) => return skip("measured-colors", &error.to_string()),
    };
    let set = colors.set("50%").unwrap();
    assert_eq!(set.len(), colors.count() / 2);
    let arena = ColoredArena::new(&colors, &set, ArenaOptions::new()).unwrap();
    let mut numbers: allocator_api2::vec::Vec<u32, _> =
        allocator_api2::vec::Vec::new_in(arena.clone());
    numbers.extend(0..100_000);
    assert!(numbers.iter().copied().eq(0..100_000));
    let usage = arena.usage();
    let pages = PageCount(usage.held.0 / 4096);
    assert_eq!(usage.placed.0 + usage.fallback.0, pages.0, "{usage:?}");
    match arena.verify() {
        Ok(verdict) => {
            assert_eq!((verdict.resident, verdict.absent), (pages, PageCount(0)));
            println!("{} colors, {usage:?}, {verdict:?}", colors.count());
        }
        Err(error) => skip("measured-colors", &error.to_string()),
    }
}
