//! Decides who may connect, and how often. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue::act::Terms;

use crate::rules::User;

/// Workers that a user may start at once, and the time until one more is allowed. A start costs the daemon a millisecond.
const BURST: u32 = 32;
const ONE_MORE: Duration = Duration::from_millis(250);

/// An entry of `allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowEntry {
    /// A user.
    User(User),
    /// The members of a group.
    Group(User),
}

/// The settings of `[users]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserSettings {
    /// The users and groups that may connect.
    pub allow: Vec<AllowEntry>,
    /// The limits for each client.
    pub terms: Terms,
    /// Clients at a time.
    pub clients: usize,
    /// Of these, those of one user.
    pub clients_per_user: usize,
}

/// The credentials of a client, from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

impl AllowEntry {
    /// Returns a warning if no such user or group exists.
    pub(crate) fn nobody(&self) -> Option<String> {
        let (given, kind, database) = match self {
            Self::User(user) => (user, "user", "passwd"),
            Self::Group(group) => (group, "group", "group"),
        };
        given.number.is_none().then(|| {
            format!(
                "[users] allows `{}`, and there is no such {kind} (see getent {database})",
                given.name
            )
        })
    }

    fn holds_for(&self, client: &Client) -> bool {
        match self {
            Self::User(user) => user.number == Some(client.uid),
            Self::Group(group) => group
                .number
                .is_some_and(|gid| gid == client.gid || client.groups.contains(&gid)),
        }
    }
}

impl UserSettings {
    /// Checks that the client is allowed.
    ///
    /// # Errors
    /// A sentence for the client.
    pub(super) fn admits(&self, client: &Client) -> Result<(), String> {
        if client.uid == 0 {
            return Err(
                "root is not served: it has CAP_SYS_NICE, unless somebody has taken that away on purpose"
                    .to_owned(),
            );
        }
        if self.allow.iter().any(|allowed| allowed.holds_for(client)) {
            return Ok(());
        }
        Err(format!(
            "the daemon's configuration does not allow user {0}: an administrator can add \"{0}\" to `allow` of [users] \
             in a file of /etc/superhue/conf.d",
            client.uid
        ))
    }

    /// Checks that there is room for one more beside `all` clients, `same` of them of the same user.
    ///
    /// # Errors
    /// A sentence for the client.
    pub(super) fn have_room(&self, all: usize, same: usize) -> Result<(), String> {
        if same >= self.clients_per_user {
            return Err(format!(
                "the daemon acts for {same} programs of this user already, which is the most \
                 (clients-per-user of [users])"
            ));
        }
        if all >= self.clients {
            return Err(format!(
                "the daemon acts for {all} programs already, which is the most (clients of [users])"
            ));
        }
        Ok(())
    }
}

/// Counts the workers started for each user.
#[derive(Debug, Default)]
pub(super) struct StartLimiter(BTreeMap<u32, StartBudget>);

#[derive(Debug)]
struct StartBudget {
    left: u32,
    since: Duration,
}

impl StartLimiter {
    /// Takes one start of the user at the time `at`.
    ///
    /// # Errors
    /// A sentence for the client.
    pub(super) fn take(&mut self, uid: u32, at: Duration) -> Result<(), String> {
        let whole = ONE_MORE * BURST;
        // A user with all starts left needs no entry.
        self.0
            .retain(|_, counted| at.saturating_sub(counted.since) < whole);
        let counted = self.0.entry(uid).or_insert(StartBudget {
            left: BURST,
            since: at,
        });
        while counted.left < BURST && counted.since + ONE_MORE <= at {
            counted.since += ONE_MORE;
            counted.left += 1;
        }
        if counted.left == BURST {
            counted.since = at;
        }
        counted.left = counted.left.checked_sub(1).ok_or_else(|| {
            format!("this user has connected {BURST} times in a few seconds: try again in a second")
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use superhue::act::Terms;
    use superhue_model::Share;

    use super::*;

    fn named(number: Option<u32>) -> User {
        User {
            name: "somebody".to_owned(),
            number,
        }
    }

    fn settings(allow: Vec<AllowEntry>) -> UserSettings {
        UserSettings {
            allow,
            terms: Terms {
                budget: Share::BasisPoints(500),
                rate: None,
            },
            clients: 3,
            clients_per_user: 2,
        }
    }

    fn client(uid: u32, gid: u32, groups: &[u32]) -> Client {
        Client {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn users_and_groups_that_are_named_may_come_and_nobody_else() {
        let user = settings(vec![
            AllowEntry::User(named(Some(1000))),
            AllowEntry::User(named(None)),
            AllowEntry::Group(named(None)),
        ]);
        assert_eq!(user.admits(&client(1000, 5, &[])), Ok(()));
        let heard = user.admits(&client(1001, 1000, &[1000])).unwrap_err();
        assert!(heard.contains("does not allow user 1001"), "{heard}");
        // The number that means no user.
        assert!(
            user.admits(&client(u32::MAX, u32::MAX, &[u32::MAX]))
                .is_err()
        );
        let group = settings(vec![AllowEntry::Group(named(Some(20)))]);
        assert_eq!(group.admits(&client(7, 20, &[])), Ok(()));
        assert_eq!(group.admits(&client(7, 7, &[3, 20])), Ok(()));
        assert!(group.admits(&client(20, 7, &[7])).is_err());
        // Root is refused whatever the configuration says.
        let root = settings(vec![
            AllowEntry::User(named(Some(0))),
            AllowEntry::Group(named(Some(0))),
        ]);
        assert!(root.admits(&client(0, 0, &[0])).is_err());
    }

    #[test]
    fn there_is_room_for_so_many_of_a_user_and_so_many_in_all() {
        let settings = settings(Vec::new());
        assert_eq!(settings.have_room(2, 1), Ok(()));
        let heard = settings.have_room(2, 2).unwrap_err();
        assert!(heard.contains("2 programs of this user"), "{heard}");
        let heard = settings.have_room(3, 0).unwrap_err();
        assert!(heard.contains("for 3 programs already"), "{heard}");
    }

    #[test]
    fn who_comes_over_and_over_waits_and_nobody_else() {
        let mut starts = StartLimiter::default();
        let at = Duration::from_secs(100);
        for _ in 0..BURST {
            starts.take(1, at).unwrap();
        }
        assert!(starts.take(1, at).unwrap_err().contains("try again"));
        starts.take(2, at).unwrap();
        assert!(starts.take(1, at + ONE_MORE / 2).is_err());
        starts.take(1, at + ONE_MORE).unwrap();
        assert!(starts.take(1, at + ONE_MORE).is_err());
        // In the long run no more than that.
        let mut taken = 0;
        for step in 0..1000 {
            let at = at + ONE_MORE * 2 + ONE_MORE * step / 10;
            taken += u32::from(starts.take(1, at).is_ok());
        }
        assert!((99..=102).contains(&taken), "{taken}");
        let later = at + Duration::from_secs(1000);
        starts.take(3, later).unwrap();
        assert_eq!(starts.0.len(), 1, "others are forgotten");
        for _ in 0..BURST {
            starts.take(1, later).unwrap();
        }
    }
}
