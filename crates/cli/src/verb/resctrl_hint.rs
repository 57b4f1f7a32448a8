//! Hint at resctrl, for users who isolate programs by page colors where the hardware divides the cache.

use superhue::CacheAllocationAdvice;
use superhue::model::ColorRequest;
use superhue::procfs::Roots;

use crate::output::note;

/// Notes that resctrl can divide the L3 of this machine, if it can.
pub(super) fn show() {
    if let Some(hint) = CacheAllocationAdvice::read(&Roots::default()).hint() {
        note(&hint);
    }
}

/// Does the same if a program requests a part of the colors.
pub(super) fn show_for(request: &ColorRequest) {
    if isolates(request) {
        show();
    }
}

/// Returns true if a request keeps a program apart from others; `spread` gives it all colors.
const fn isolates(request: &ColorRequest) -> bool {
    match request {
        ColorRequest::List(_) | ColorRequest::Percent(_) => true,
        ColorRequest::Off | ColorRequest::Spread => false,
    }
}

#[cfg(test)]
mod tests {
    use superhue::parse;

    use super::*;

    #[test]
    fn a_part_of_the_colors_isolates_and_all_of_them_do_not() {
        for (text, expected) in [
            ("0-3,8", true),
            ("50%", true),
            ("spread", false),
            ("off", false),
        ] {
            assert_eq!(isolates(&parse::colors(text).unwrap()), expected, "{text}");
        }
    }
}
