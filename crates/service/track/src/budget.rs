//! The choice of a client to end when memory is short.
//!
//! Half of the service's memory is for what it keeps, the other half for a list in the making:
//!
//! ```text
//!   kept    lists, sets sent     8 bytes a page in the list, and about 80 a region with active pages
//!           heat of targets      about 2 bytes a page, once for each target
//!   making  active pages         up to [`MAKING`] bytes each, of one target at a time
//! ```
//!
//! The client that holds most has to go, among those of the user who holds most: a user who fills the
//! service with clients or pages loses only their own.

/// Bytes for an active page while a list is made: the list itself, what its growth leaves free, and
/// sorting.
pub(crate) const MAKING: u64 = 48;

/// Memory that one client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    /// The client's number.
    pub(crate) id: u64,
    pub(crate) uid: u32,
    /// Bytes: its own, and an even part of what several clients share.
    pub(crate) bytes: u64,
}

/// Returns the client to end, if together they hold more than `most` bytes.
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
    // Among equals the newest.
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
