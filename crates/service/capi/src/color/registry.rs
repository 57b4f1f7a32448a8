//! The process's colors, and one arena for each requested combination of a set and flags.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use superhue_arena::{ArenaOptions, ColorError, ColorSet, ColoredArena, Colors, gate};

/// `SUPERHUE_COLOR_STRICT`.
const STRICT: u32 = 1;
/// `SUPERHUE_COLOR_LOCKED`.
const LOCKED: u32 = 2;
/// `SUPERHUE_COLOR_PRIVATE`.
const PRIVATE: u32 = 4;

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    colors: None,
    arenas: Vec::new(),
});

struct Registry {
    colors: Option<Colors>,
    arenas: Vec<Entry>,
}

struct Entry {
    set: ColorSet,
    flags: u32,
    /// True while its colors are in force; afterwards the arena only takes memory back.
    current: bool,
    arena: ColoredArena,
}

impl Registry {
    /// Removes the arenas of earlier colors whose memory has all been given back, and returns them: the caller drops them
    /// while the registry is not locked. An arena that another thread uses stays until the next call.
    fn remove_idle(&mut self) -> Vec<ColoredArena> {
        let mut idle = Vec::new();
        self.arenas.retain_mut(|entry| {
            let stays = entry.current || !entry.arena.is_idle();
            if !stays {
                idle.push(entry.arena.clone());
            }
            stays
        });
        idle
    }
}

/// Runs `work`, which must be short, with the registry locked. No fork happens meanwhile, so no
/// child inherits a locked registry.
fn with<T>(work: impl FnOnce(&mut Registry) -> T) -> T {
    let _inside = gate::enter();
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut registry)
}

/// Returns the colors in force; opens them first if they are not open.
pub fn colors() -> Result<Colors, ColorError> {
    match with(|registry| registry.colors.clone()) {
        Some(colors) => Ok(colors),
        None => reopen(),
    }
}

/// Opens the machine's colors.
fn open() -> Result<Colors, ColorError> {
    // The tests of this interface need no timing with these colors; not in release builds.
    #[cfg(debug_assertions)]
    if std::env::var_os("SUPERHUE_TEST_COLORS").is_some() {
        let frames = superhue_arena::frames::FrameOracle::new(8);
        let unseen = || ColorError::Unknown("frame numbers are shown to root alone".to_owned());
        return Colors::with_oracle(frames.ok_or_else(unseen)?);
    }
    Colors::open()
}

/// Opens the colors. If they are open already, tests them, and finds them again only if they have
/// changed.
pub fn reopen() -> Result<Colors, ColorError> {
    let before = with(|registry| registry.colors.clone());
    if let Some(colors) = before
        && colors.retest().is_ok()
    {
        return Ok(colors);
    }
    let colors = open()?;
    let idle = with(|registry| {
        registry.colors = Some(colors.clone());
        for entry in &mut registry.arenas {
            entry.current = false;
        }
        registry.remove_idle()
    });
    drop(idle);
    Ok(colors)
}

/// Returns the arena for a set and flags.
pub fn arena(colors: &Colors, set: ColorSet, flags: u32) -> Result<ColoredArena, ColorError> {
    if flags & !(STRICT | LOCKED | PRIVATE) != 0 {
        return Err(ColorError::Invalid(
            "a flag that this library does not know",
        ));
    }
    let options = ArenaOptions::new()
        .strict(flags & STRICT != 0)
        .locked(flags & LOCKED != 0)
        .keep_from_children(flags & PRIVATE != 0);
    let made = ColoredArena::new(colors, &set, options)?;
    Ok(with(|registry| {
        let fits = |entry: &&Entry| {
            entry.current
                && entry.flags == flags
                && entry.set == set
                && !entry.arena.is_left_behind()
        };
        if let Some(entry) = registry.arenas.iter().find(fits) {
            return entry.arena.clone();
        }
        registry.arenas.push(Entry {
            set,
            flags,
            current: true,
            arena: made.clone(),
        });
        made
    }))
}

/// Gives memory back to its arena; returns false if it belongs to no arena.
///
/// # Safety
/// No code uses the memory any more.
pub unsafe fn free(memory: NonNull<u8>) -> bool {
    let arenas: Vec<ColoredArena> = with(|registry| {
        registry
            .arenas
            .iter()
            .map(|entry| entry.arena.clone())
            .collect()
    });
    // SAFETY: the caller's promise.
    let freed = arenas
        .iter()
        .any(|arena| unsafe { arena.deallocate(memory) });
    drop(arenas);
    drop(with(Registry::remove_idle));
    freed
}
