//! Checks that the daemon makes huge pages for this user, who then needs no `CAP_SYS_NICE`.

use superhue_act::{ServiceError, Terms, UserService};

use super::Probe;
use super::finding::{Finding, Trial};
use super::surroundings::ProbeEnvironment;

pub(super) const USERS: Probe = Probe {
    id: "user-service",
    name: "Have the daemon collapse for this user",
    how: "connected to the daemon's socket for users, and read its terms or its reason",
    used_for: "promoting programs of one's own without CAP_SYS_NICE",
    run: users,
};

fn users(_: &ProbeEnvironment) -> Trial {
    let service = UserService::default();
    let connection = service.connect().map(|connection| connection.terms());
    Ok(conclude(connection))
}

fn conclude(answer: Result<Terms, ServiceError>) -> Finding {
    const REMEDY: &str = "an administrator allows users in the daemon's configuration: [users] allow = [...] in \
                          /etc/superhue/superhue.toml (superhue-daemon(1))";
    match answer {
        Ok(terms) => {
            let rate = terms
                .rate
                .map_or(String::new(), |rate| format!(", {rate} in a second"));
            let budget = terms.budget;
            Finding::yes(format!(
                "for this user's programs; they may grow by {budget}{rate}"
            ))
        }
        Err(error @ ServiceError::NotThere(_)) => Finding::no(error.to_string()).remedy(REMEDY),
        // The daemon's text contains the remedy.
        Err(error @ ServiceError::Refused(_)) => Finding::no(error.to_string()),
        Err(error @ (ServiceError::OtherNamespace(_) | ServiceError::NotUnderstood { .. })) => {
            Finding::no(error.to_string())
        }
        Err(error @ (ServiceError::Late { .. } | ServiceError::Io { .. })) => {
            Finding::unknown(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_model::{ByteCount, Share};

    use super::super::Availability;
    use super::*;

    #[test]
    fn what_the_daemon_says_is_told() {
        let terms = Terms {
            budget: Share::BasisPoints(500),
            rate: Some(ByteCount(1 << 30)),
        };
        let found = conclude(Ok(terms));
        assert_eq!(found.availability, Availability::Yes);
        assert!(
            found.found.ends_with("may grow by 5%, 1.0 GiB in a second"),
            "{found:?}"
        );
        let nobody = conclude(Err(ServiceError::NotThere("/run/x".into())));
        assert_eq!(nobody.availability, Availability::No);
        assert!(
            nobody
                .remedy
                .is_some_and(|remedy| remedy.contains("[users]"))
        );
        let refused = conclude(Err(ServiceError::Refused("not you".to_owned())));
        assert_eq!(
            (refused.availability, &*refused.found),
            (Availability::No, "not you")
        );
        let late = conclude(Err(ServiceError::Late {
            path: "/run/x".into(),
        }));
        assert_eq!(late.availability, Availability::Unknown);
    }
}
