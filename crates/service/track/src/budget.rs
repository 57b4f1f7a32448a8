//! Who has to go when memory is short.
//!
//! Half of what the service may take is for what it keeps, the other half for a list in the making:
//!
//! ```text
//!   kept    lists, sets told     8 bytes a page in the list, and about 80 a region with active pages
//!           heat of targets      about 2 bytes a page, once for each target
//!   making  active pages         up to [`MAKING`] bytes each, of one target at a time
//! ```
//!
//! Of the user who holds most it is the client that holds most: who fills the service with clients or
//! pages puts out his own, never another's.

/// Bytes for an active page while a list is made: the list itself, what its growth leaves free, and
/// sorting.
pub(crate) const MAKING: u64 = 48;

/// What one client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    /// The client's number.
    pub(crate) id: u64,
    pub(crate) uid: u32,
    /// Bytes; what several clients hold together is divided among them.
    pub(crate) bytes: u64,
}

/// The client to let go, if together they hold more than `most` bytes.
pub(crate) fn surplus(holdings: &[Holding], most: u64) -> Option<Holding> {
    let sum = |uid: Option<u32>| -> u64 {
        let those = holdings
            .iter()
            .filter(|one| uid.is_none_or(|uid| one.uid == uid));
        those.map(|one| one.bytes).sum()
    };
    if sum(None) <= most {
        return None;
    }
    let largest = holdings
        .iter()
        .max_by_key(|one| (sum(Some(one.uid)), one.uid))?;
    let theirs = holdings.iter().filter(|one| one.uid == largest.uid);
    // Of equals the newest.
    theirs.max_by_key(|one| (one.bytes, one.id)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fills_the_service_puts_out_his_own() {
        let holding = |id, uid, bytes| Holding { id, uid, bytes };
        let all = [
            holding(1, 1000, 70),
            holding(2, 1001, 40),
            holding(3, 1001, 50),
            holding(4, 1001, 50),
        ];
        assert_eq!(surplus(&all, 210), None);
        assert_eq!(surplus(&all, 209), Some(all[3]));
        assert_eq!(surplus(&all[..3], 159), Some(all[2]));
        assert_eq!(surplus(&all[..2], 100), Some(all[0]));
        assert_eq!(surplus(&[], 0), None);
    }
}
