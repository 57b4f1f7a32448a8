//! Palette files: made once, shared by all processes, always tested.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use superhue_model::ByteCount;

use crate::Page;
use crate::oracles::mapping::live;
use crate::oracles::simulate::{Machine, SimulatedProbe};
use crate::oracles::{
    DiscoverError, MeasuredOracle, Oracle, OracleError, PaletteConfig, PaletteError, Progress,
    Search, SharedPalette,
};

/// A folder in memory, and a configuration that makes palettes there.
fn place() -> (tempfile::TempDir, PaletteConfig) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = PaletteConfig {
        places: vec![folder.path().join("superhue/palette")],
        pool: ByteCount(4 << 20),
        search: Search::default(),
        patience: PaletteConfig::SEARCH_TIME_LIMIT,
    };
    (folder, config)
}

/// A machine on which the color of a page depends on its number in the file, not on its address: as with frames.
fn machine(colors: usize) -> SimulatedProbe {
    let machine = Machine {
        colors,
        ..Machine::USUAL
    };
    SimulatedProbe::new(machine, 1, move |page| number(page) * 7 % colors)
}

/// Number in its file of a page of a palette; pages of the model have their own.
fn number(page: Page) -> usize {
    live::number(page).unwrap_or(page.address() / 4096)
}

fn path(config: &PaletteConfig) -> &Path {
    &config.places[0]
}

#[test]
fn it_is_made_once_and_then_opened() {
    let (_folder, config) = place();
    let mut probe = machine(8);
    let missing = SharedPalette::open(&mut probe, &config).unwrap_err();
    assert!(matches!(missing, PaletteError::Missing(_)));
    let mut steps = Vec::new();
    let first = SharedPalette::open_or_find(&mut probe, &config, |step| steps.push(step)).unwrap();
    assert_eq!(steps, [Progress::Testing, Progress::Searching]);
    assert_eq!(first.palette().colors(), 8);
    let again = SharedPalette::open_or_find(&mut probe, &config, |step| {
        assert_eq!(step, Progress::Testing);
    });
    let again = again.unwrap();
    for (before, after) in first.palette().sets().iter().zip(again.palette().sets()) {
        let numbers = |set: &[Page]| set.iter().map(|page| number(*page)).collect::<Vec<_>>();
        assert_eq!(
            numbers(before),
            numbers(after),
            "the same pages under the same number"
        );
    }
    let stat = fs::metadata(path(&config)).unwrap();
    assert_eq!(stat.mode() & 0o777, 0o644);
    assert!(
        stat.blocks() * 512 < 1 << 20,
        "what no set needs is given back: {}",
        stat.blocks()
    );
    let beside: Vec<PathBuf> = (fs::read_dir(path(&config).parent().unwrap()).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(
        beside.iter().all(|path| !path.ends_with("palette.new")),
        "{beside:?}"
    );
}

#[test]
fn one_that_no_longer_holds_is_replaced_while_others_keep_theirs() {
    let (_folder, config) = place();
    let old = SharedPalette::open_or_find(&mut machine(8), &config, |_| {}).unwrap();
    let inode = fs::metadata(path(&config)).unwrap().ino();
    let mut moved = machine(5);
    let stale = SharedPalette::open(&mut moved, &config).unwrap_err();
    assert!(matches!(stale, PaletteError::Stale(_)), "{stale}");
    let new = SharedPalette::open_or_find(&mut moved, &config, |_| {}).unwrap();
    assert_eq!(new.palette().colors(), 5);
    assert_ne!(fs::metadata(path(&config)).unwrap().ino(), inode);
    assert!(
        old.retest(&mut machine(8), 2).passed(),
        "the one before is still there"
    );
    let drifted = old.retest(&mut moved, 2);
    assert!(!drifted.passed());
}

#[test]
fn forgetting_removes_it() {
    let (_folder, config) = place();
    SharedPalette::open_or_find(&mut machine(4), &config, |_| {}).unwrap();
    assert_eq!(SharedPalette::forget(&config), Ok(config.places.clone()));
    assert!(!path(&config).exists());
    assert_eq!(SharedPalette::forget(&config), Ok(Vec::new()));
}

fn refusal(config: &PaletteConfig) -> String {
    SharedPalette::open(&mut machine(4), config)
        .unwrap_err()
        .to_string()
}

/// Returns the reason why a palette that is made now is for this process alone.
fn alone(config: &PaletteConfig) -> String {
    let alone = SharedPalette::open_or_find(&mut machine(4), config, |_| {}).unwrap();
    assert_eq!(alone.palette().colors(), 4);
    alone.alone_because().unwrap().to_owned()
}

#[test]
fn files_that_anybody_could_have_made_are_refused_with_the_reason() {
    let (_folder, config) = place();
    let path = path(&config);
    fs::create_dir(path.parent().unwrap()).unwrap();
    let real = path.with_extension("real");
    fs::write(&real, vec![0; 4096]).unwrap();
    symlink(&real, path).unwrap();
    assert!(refusal(&config).contains("symbolic link"));
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
    assert!(refusal(&config).contains("no regular file"));
    fs::remove_dir(path).unwrap();
    for (bytes, reason) in [
        (0, "size"),
        (5_000, "size"),
        (4_096, "no palette"),
        (81_920, "no palette"),
    ] {
        fs::write(path, vec![0_u8; bytes]).unwrap();
        assert!(
            refusal(&config).contains(reason),
            "{bytes}: {}",
            refusal(&config)
        );
    }
    fs::write(path, vec![0_u8; 4_096]).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(refusal(&config).contains("others may write"));
    fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
    if superhue_testing::is_root() {
        std::os::unix::fs::chown(path, Some(superhue_testing::NOBODY), None).unwrap();
        assert!(refusal(&config).contains("another user"));
        // The file is not replaced either.
        assert!(alone(&config).contains("another user"));
    } else {
        superhue_testing::skip("root", "cannot make a file of another user");
    }
}

/// Another user has put a file there first, in a folder that all users may write to.
#[test]
fn what_others_have_put_there_first_blocks_nobody() {
    let (folder, mut config) = place();
    if !superhue_testing::is_root() {
        return superhue_testing::skip("root", "cannot make a file of another user");
    }
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    config.places = vec![
        folder.path().join("palette"),
        folder.path().join("palette-next"),
    ];
    let lock = path(&config).with_extension("lock");
    // Locked by its owner, who never releases it.
    let held = fs::File::create(&lock).unwrap();
    held.lock().unwrap();
    std::os::unix::fs::chown(&lock, Some(superhue_testing::NOBODY), None).unwrap();
    let next = SharedPalette::open_or_find(&mut machine(4), &config, |_| {}).unwrap();
    assert_eq!(next.path(), config.places[1]);
    // Without another place, no other process has these colors.
    let next = config.places.pop().unwrap();
    let why = alone(&config);
    assert!(why.contains("belongs to user 65534"), "{why}");
    fs::remove_file(&lock).unwrap();
    symlink(&next, &lock).unwrap();
    assert!(alone(&config).contains("symbolic link"));
    fs::remove_file(&lock).unwrap();
    // A user that can open a lock can hold it.
    fs::write(&lock, "").unwrap();
    fs::set_permissions(&lock, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(alone(&config).contains("others may open it"));
}

#[test]
fn a_lock_is_not_waited_for_without_end() {
    let (_folder, mut config) = place();
    config.patience = Duration::from_millis(20);
    SharedPalette::open_or_find(
        &mut machine(4),
        &PaletteConfig {
            patience: PaletteConfig::SEARCH_TIME_LIMIT,
            ..config.clone()
        },
        |_| {},
    )
    .unwrap();
    let lock = path(&config).with_extension("lock");
    assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o777, 0o600);
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let mut moved = machine(5);
    let locked = crate::oracles::file::lock(path(&config), config.patience).unwrap_err();
    assert!(matches!(locked, PaletteError::Locked(_)), "{locked}");
    // Readers of the palette block no process, whatever they lock.
    drop(held);
    let reader = fs::File::open(path(&config)).unwrap();
    reader.lock().unwrap();
    config.patience = PaletteConfig::SEARCH_TIME_LIMIT;
    let new = SharedPalette::open_or_find(&mut moved, &config, |_| {}).unwrap();
    assert_eq!(new.palette().colors(), 5);
}

#[test]
fn a_palette_cut_off_or_changed_is_made_anew() {
    let (_folder, config) = place();
    SharedPalette::open_or_find(&mut machine(4), &config, |_| {}).unwrap();
    let bytes = fs::read(path(&config)).unwrap();
    let mut changed = bytes.clone();
    changed[60] ^= 1;
    for bad in [&bytes[..8_192], &changed] {
        fs::write(path(&config), bad).unwrap();
        assert!(matches!(
            SharedPalette::open(&mut machine(4), &config),
            Err(PaletteError::Header { .. })
        ));
        let new = SharedPalette::open_or_find(&mut machine(4), &config, |_| {}).unwrap();
        assert_eq!(new.palette().colors(), 4);
    }
}

#[test]
fn a_file_that_is_not_in_memory_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let config = PaletteConfig {
        places: vec![folder.path().join("palette")],
        pool: ByteCount(4 << 20),
        search: Search::default(),
        patience: PaletteConfig::SEARCH_TIME_LIMIT,
    };
    assert!(alone(&config).contains("no tmpfs"));
}

#[test]
fn a_palette_that_cannot_be_made_leaves_nothing_behind() {
    let (_folder, config) = place();
    let flat = Machine {
        ticks: [20, 20, 20],
        ..Machine::USUAL
    };
    let mut probe = SimulatedProbe::new(flat, 1, |_| 0);
    let error = SharedPalette::open_or_find(&mut probe, &config, |_| {}).unwrap_err();
    assert!(matches!(error, PaletteError::Discover(_)), "{error}");
    assert!(!path(&config).exists() && !path(&config).with_extension("new").exists());
}

#[test]
fn what_a_killed_process_left_is_in_nobodys_way_and_does_not_pile_up() {
    let (_folder, config) = place();
    let folder = path(&config).parent().unwrap();
    let left = path(&config).with_extension("new");
    fs::create_dir_all(folder).unwrap();
    fs::write(&left, vec![1; 1 << 20]).unwrap();
    let lock = path(&config).with_extension("lock");
    fs::write(&lock, "").unwrap();
    fs::set_permissions(&lock, PermissionsExt::from_mode(0o600)).unwrap();
    let palette = SharedPalette::open_or_find(&mut machine(4), &config, |_| {}).unwrap();
    assert_eq!(palette.palette().colors(), 4);
    assert!(!left.exists(), "taken by the new one, then renamed");
    fs::write(&left, vec![1; 1 << 20]).unwrap();
    SharedPalette::forget(&config).unwrap();
    let rest: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn forgetting_leaves_who_makes_one_alone() {
    let (_folder, config) = place();
    fs::create_dir_all(path(&config).parent().unwrap()).unwrap();
    let (new, lock) = (
        path(&config).with_extension("new"),
        path(&config).with_extension("lock"),
    );
    fs::write(&new, "under way").unwrap();
    let held = fs::File::create(&lock).unwrap();
    held.lock().unwrap();
    assert!(SharedPalette::forget(&config).unwrap().is_empty());
    assert!(new.exists() && lock.exists());
    drop(held);
    SharedPalette::forget(&config).unwrap();
    assert!(!new.exists() && !lock.exists());
}

#[test]
fn a_search_ends_when_it_has_taken_too_long() {
    let (_folder, mut config) = place();
    config.patience = Duration::ZERO;
    let error = SharedPalette::open_or_find(&mut machine(4), &config, |_| {}).unwrap_err();
    let told = DiscoverError::TooLong(Duration::ZERO);
    assert_eq!(error, PaletteError::Discover(told));
    assert!(!path(&config).exists() && !path(&config).with_extension("new").exists());
}

/// Timing that shows another cache in every trial, and is slow; without the limit the search does not end.
#[test]
fn a_search_that_begins_again_and_again_ends_too() {
    let (_folder, mut config) = place();
    config.patience = Duration::from_millis(300);
    let mut turn = 0_usize;
    let mut probe = SimulatedProbe::new(Machine::USUAL, 1, move |_| {
        turn += 1;
        turn % 32
    });
    let error = SharedPalette::open_or_find(&mut probe, &config, |_| {}).unwrap_err();
    assert!(matches!(error, PaletteError::Discover(_)), "{error}");
}

#[test]
fn the_oracle_tells_colors_until_they_change() {
    let (_folder, config) = place();
    let shared = SharedPalette::open_or_find(&mut machine(8), &config, |_| {}).unwrap();
    let names: Vec<usize> = (shared.palette().sets().iter())
        .map(|set| number(set[0]) * 7 % 8)
        .collect();
    let mut oracle = MeasuredOracle::new(shared, machine(8));
    let (_, pages) = SimulatedProbe::with_pages(Machine::QUIET, 1, 300);
    let mut colors = vec![None; pages.len()];
    oracle.classify(&pages, &mut colors).unwrap();
    let right = pages.iter().zip(&colors).filter(|(page, color)| {
        color.is_some_and(|color| names[usize::from(color.0)] == number(**page) * 7 % 8)
    });
    assert!(right.count() >= 297);
    let (_folder, config) = place();
    let shared = SharedPalette::open_or_find(&mut machine(8), &config, |_| {}).unwrap();
    let mut drifted = MeasuredOracle::new(shared, machine(5));
    let many: Vec<Page> = pages.iter().copied().cycle().take(5_000).collect();
    let mut colors = vec![None; many.len()];
    let error = drifted.classify(&many, &mut colors).unwrap_err();
    assert!(matches!(error, OracleError::Drifted(_)), "{error}");
    assert!(colors.iter().all(Option::is_none));
}
