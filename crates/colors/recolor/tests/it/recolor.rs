//! Pages of a real process get other frames, and keep their bytes.

use superhue_act::{Journal, SwapInUse};
use superhue_color::oracles::{
    HardwareProbe, MeasuredOracle, PaletteConfig, Search, SharedPalette,
};
use superhue_model::{BASE_PAGE_SIZE, Color, ColorRequest, PageCount, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::identify;
use superhue_recolor::{KeptReason, RecolorError, RecolorResult, Recolorer, TargetColors};
use superhue_sys::scratch::Scratch;
use superhue_sys::scratch_child::{Backing, ScratchChild};
use superhue_sys::userfaultfd::Userfault;
use superhue_testing::{is_root, skip};

const SEED: u64 = 0x1234;
const PAGES: usize = 64;
const HOLD: PageCount = PageCount(1 << 14);

/// Calls until every page has its color, on a busy machine too.
const CALLS: usize = 50;

/// Swap in memory of this test's own, and a recolorer; `None`, with a visible skip, where either is unavailable.
fn recolorer(folder: &std::path::Path) -> Option<(SwapInUse, Recolorer)> {
    if !is_root() {
        skip("root", "frame numbers and swap are root's");
        return None;
    }
    let swap = match SwapInUse::make(&Journal::at(folder.join("journal"), &Roots::default())) {
        Ok(swap) => swap,
        Err(error) => {
            skip("swap-in-memory", &error.to_string());
            return None;
        }
    };
    let config = PaletteConfig {
        places: Vec::new(),
        pool: PaletteConfig::POOL,
        search: Search::default(),
        patience: PaletteConfig::SEARCH_TIME_LIMIT,
    };
    let found = HardwareProbe::new().map_err(|error| error.to_string());
    let found = found.and_then(|mut probe| {
        SharedPalette::open_or_find(&mut probe, &config, |_| {}).map_err(|error| error.to_string())
    });
    let palette = match found {
        Ok(palette) => palette,
        Err(error) => {
            skip("measured", &error);
            return None;
        }
    };
    let oracle = MeasuredOracle::new(palette, HardwareProbe::new().unwrap());
    match Recolorer::new(oracle, &Roots::default()) {
        Ok(recolorer) => Some((swap, recolorer)),
        Err(error) => {
            skip("pfn", &error.to_string());
            None
        }
    }
}

#[test]
fn pages_get_frames_of_the_colors_wanted_and_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    // One for both parts: finding colors takes a second, and more on a busy machine.
    let Some((_swap, mut recolorer)) = recolorer(folder.path()) else {
        return;
    };
    what_is_not_there_or_gone_is_left_alone(&mut recolorer);
    who_uses_a_userfaultfd_is_left_alone(&mut recolorer);
    pages_keep_their_bytes(&mut recolorer);
}

fn pages_keep_their_bytes(recolorer: &mut Recolorer) {
    let roots = Roots::default();
    let child = ScratchChild::start().unwrap();
    let region = child.map(Backing::BasePages).unwrap();
    child.fill(SEED).unwrap();
    let id = identify(&roots, child.pid()).unwrap();
    let page = |at: usize| VirtAddr(region.start().0 + at as u64 * BASE_PAGE_SIZE);
    let pages: Vec<VirtAddr> = (0..PAGES).map(page).collect();

    let half: ColorRequest = "50%".parse().unwrap();
    let set = half.of(recolorer.colors()).unwrap().unwrap();
    let want = TargetColors::Within(set.clone());
    let is_right = |color: &Option<Color>| color.is_some_and(|color| set.contains(color));
    let mut colors = Vec::new();
    for _ in 0..CALLS {
        let placed = match recolorer.place(id, &pages, &want, HOLD) {
            Ok(placed) => placed,
            Err(RecolorError::Oracle(error)) => return skip("measured", &error.to_string()),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(placed.len(), PAGES);
        // Used pages are mapped: their frames show.
        assert!(child.is_intact(SEED).unwrap());
        colors = recolorer.colors_of(id, &pages).unwrap();
        if colors.iter().all(is_right) {
            break;
        }
    }
    assert!(colors.iter().all(is_right), "{colors:?}");
    let price = recolorer.price();
    assert!(
        price.outs >= PAGES as u64 && price.ins <= price.outs,
        "{price:?}"
    );

    // The check measures frames by giving each page another one of its color.
    let checked = recolorer.check(id, &pages[..16], HOLD);
    if let Err(error) = checked {
        return skip("measured", &error.to_string());
    }
    assert!(child.is_intact(SEED).unwrap());
}

fn what_is_not_there_or_gone_is_left_alone(recolorer: &mut Recolorer) {
    let roots = Roots::default();
    let child = ScratchChild::start().unwrap();
    // No page is in memory yet.
    let region = child.map(Backing::BasePages).unwrap();
    let id = identify(&roots, child.pid()).unwrap();
    let holes: Vec<VirtAddr> = (8..16)
        .map(|at| VirtAddr(region.start().0 + at * BASE_PAGE_SIZE))
        .collect();
    let want = TargetColors::Each(vec![Color(0); holes.len()]);
    let placed = recolorer.place(id, &holes, &want, HOLD).unwrap();
    assert_eq!(
        placed,
        vec![RecolorResult::Kept(KeptReason::Absent); holes.len()]
    );
    assert_eq!(recolorer.price().attempts, 0);
    drop(child);
    let gone = recolorer.place(id, &holes, &want, HOLD);
    assert_eq!(gone, Err(RecolorError::Gone));
}

fn who_uses_a_userfaultfd_is_left_alone(recolorer: &mut Recolorer) {
    let userfault = Userfault::open().unwrap();
    userfault.handshake().unwrap();
    let mut mine = Scratch::in_base_pages(2 << 20).unwrap();
    mine.fill(SEED);
    let range = mine.range();
    let pages: Vec<VirtAddr> = (0..8)
        .map(|at| VirtAddr(range.start.0 + at * BASE_PAGE_SIZE))
        .collect();
    userfault.register(range).unwrap();
    let id = identify(&Roots::default(), std::process::id()).unwrap();
    let want = TargetColors::Each(vec![Color(0); pages.len()]);
    let before = recolorer.price().attempts;
    let placed = recolorer.place(id, &pages, &want, HOLD);
    assert_eq!(placed, Err(RecolorError::Userfaultfd));
    assert_eq!(recolorer.price().attempts, before);
}
