//! Finds the means of making huge pages in other processes: this process, if it may, otherwise the daemon, if it allows this user.

use std::sync::{Arc, Mutex, PoisonError};

use superhue_act::{Actuator, Connection, Mappers, RemoteActuator, Terms, UserService};
use superhue_procfs::Roots;

use crate::actuator::kernel_actuator;
use crate::probe::{Availability, one};

/// The ways for a caller without the capability.
pub(crate) const WITHOUT_CAPABILITY: &str = "have an administrator allow this user in the daemon's configuration ([users] of \
     superhue-daemon(1)), or give a copy of superhue the capability (`setcap cap_sys_nice+ep`), or have the program's own \
     allocator ask for huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1 with glibc 2.35 or newer)";

/// The process that acts on other processes.
#[derive(Debug, Clone, Default)]
pub(crate) enum Means {
    /// This process.
    #[default]
    Own,
    /// The daemon.
    Service(ServiceAccess),
}

/// A daemon that allows this user.
#[derive(Debug, Clone)]
pub(crate) struct ServiceAccess {
    service: UserService,
    terms: Terms,
    /// Connection for the first actuator; later actuators open their own.
    connection: Arc<Mutex<Option<Connection>>>,
}

/// Reason why nothing can collapse memory, as a clause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MeansError {
    /// The caller has no permission, and no daemon acts for it.
    NotPermitted(String),
    /// Collapses of another process's memory do not work here, for any caller.
    Impossible(String),
}

impl Means {
    /// Tries this process first, then the daemon.
    ///
    /// # Errors
    /// Neither works.
    pub(crate) fn find(roots: &Roots) -> Result<Self, MeansError> {
        if let Some(found) = one("remote-collapse", roots) {
            // Partial means that no huge page is free at this moment; the permission is what counts.
            if matches!(
                found.availability,
                Availability::Yes | Availability::Partial
            ) {
                return Ok(Self::Own);
            }
            if !["EPERM", "EACCES"]
                .iter()
                .any(|errno| found.found.contains(errno))
            {
                return Err(MeansError::Impossible(found.found));
            }
        }
        let service = UserService::default();
        match service.connect() {
            Ok(connection) => Ok(Self::Service(ServiceAccess {
                service,
                terms: connection.terms(),
                connection: Arc::new(Mutex::new(Some(connection))),
            })),
            Err(error) => Err(MeansError::NotPermitted(error.to_string())),
        }
    }

    /// Returns a sentence for the report, if the daemon acts.
    pub(crate) fn note(&self) -> Option<String> {
        let Self::Service(ServiceAccess { service, terms, .. }) = self else {
            return None;
        };
        let rate = terms.rate.map_or(String::new(), |rate| {
            format!(", and to collapse {rate} in a second")
        });
        Some(format!(
            "the daemon at {} makes the huge pages; they may add {} of memory{rate}",
            service.path().display(),
            terms.budget
        ))
    }

    /// An actuator with all objections to a collapse. It reaches shared objects through `mappers`.
    pub(crate) fn actuator(
        &self,
        roots: &Roots,
        mappers: Mappers,
        has_budget: bool,
    ) -> Box<dyn Actuator> {
        match self {
            Self::Own => Box::new(kernel_actuator(roots, mappers, has_budget)),
            Self::Service(served) => {
                let mut connection = served
                    .connection
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let actuator = RemoteActuator::new(served.service.clone(), connection.take());
                Box::new(actuator.with_mappers(mappers))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_model::{ByteCount, Share};

    use super::*;

    #[test]
    fn a_daemon_that_acts_is_named_with_its_terms() {
        assert_eq!(Means::Own.note(), None);
        let served = |rate| {
            Means::Service(ServiceAccess {
                service: UserService::at("/run/x.sock".as_ref()),
                terms: Terms {
                    budget: Share::BasisPoints(500),
                    rate,
                },
                connection: Arc::default(),
            })
        };
        let note = served(None).note().unwrap();
        assert!(
            note.ends_with("at /run/x.sock makes the huge pages; they may add 5% of memory"),
            "{note}"
        );
        let note = served(Some(ByteCount(1 << 30))).note().unwrap();
        assert!(
            note.ends_with("and to collapse 1.0 GiB in a second"),
            "{note}"
        );
    }
}
