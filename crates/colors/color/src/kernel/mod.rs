//! Requests that a kernel with page coloring grants this caller.
//!
//! * [`Bounds`]: the colors it may choose from;
//! * [`deal`]: memory of known colors, dealt by the kernel.

mod bounds;
mod deal;

pub use bounds::Bounds;
pub use deal::{ColoredSample, deal};

use rustix::io::Errno;
use superhue_model::ColorSet;
use superhue_sys::page_color::{TaskColors, set_task_colors};

/// Tries whether this process may take `set`, on a thread that ends: nothing of this process is colored.
///
/// # Errors
/// As [`set_task_colors`]; `EAGAIN` if there is no thread to try it on.
pub fn try_colors(set: &ColorSet, strict: bool) -> Result<(), Errno> {
    let words = set.to_words();
    let wanted = wanted(set, &words, strict);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || set_task_colors(wanted));
        let thread =
            thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        thread.join().unwrap_or(Err(Errno::AGAIN))
    })
}

/// Returns the request to the kernel for a set, whose bitmap is `words`.
#[must_use]
pub fn wanted<'a>(set: &ColorSet, words: &'a [u64], strict: bool) -> TaskColors<'a> {
    if set.is_all() {
        TaskColors::Spread
    } else {
        TaskColors::Set {
            colors: words,
            strict,
        }
    }
}
