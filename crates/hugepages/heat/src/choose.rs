//! Choice of a tracker that works here.

use superhue_procfs::Roots;

use super::{DamonTracker, IdleTracker, PtwalkTracker, Scope, TrackError, Tracker, TrackerKind};

/// A tracker, and the reason for its choice.
pub struct TrackerChoice {
    /// The tracker.
    pub tracker: Box<dyn Tracker>,
    /// Reason for the choice, and faults of better trackers; the report prints it after the name.
    pub why: String,
}

impl std::fmt::Debug for TrackerChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrackerChoice")
            .field("tracker", &self.tracker.kind())
            .field("why", &self.why)
            .finish()
    }
}

/// Reason why there is no tracker.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    /// The requested tracker does not work.
    #[error("the tracker {kind} does not work here: {why}; {remedy}")]
    Wanted {
        /// Kind of the requested tracker.
        kind: TrackerKind,
        /// The attempt, and the kernel's error.
        why: String,
        /// Remedy.
        remedy: String,
    },
    /// No tracker works.
    #[error("no tracker works here: {}", reasons(.tried))]
    None {
        /// Each tracker with the reason, best first.
        tried: Vec<(TrackerKind, String)>,
    },
}

fn reasons(tried: &[(TrackerKind, String)]) -> String {
    let reasons = tried.iter().map(|(kind, why)| format!("{kind}: {why}"));
    reasons.collect::<Vec<_>>().join("; ")
}

type Build = fn(&Roots, Scope) -> Result<Box<dyn Tracker>, TrackError>;

/// Constructor of each tracker, best first.
const BUILDERS: &[(TrackerKind, Build)] = &[
    (TrackerKind::Ptwalk, |roots, scope| {
        Ok(Box::new(PtwalkTracker::new(roots, scope)?))
    }),
    (TrackerKind::Idle, |roots, scope| {
        Ok(Box::new(IdleTracker::new(roots, scope)?))
    }),
    (TrackerKind::Damon, |roots, _| {
        Ok(Box::new(DamonTracker::new(roots)?))
    }),
];

/// Returns the requested tracker, or else the best that works: it tries each one by building it.
///
/// # Errors
/// If none works, or the requested one does not: with the reason and the remedy.
pub fn choose(
    roots: &Roots,
    wanted: Option<TrackerKind>,
    scope: Scope,
) -> Result<TrackerChoice, ChooseError> {
    choose_of(BUILDERS, roots, wanted, scope)
}

fn choose_of(
    builders: &[(TrackerKind, Build)],
    roots: &Roots,
    wanted: Option<TrackerKind>,
    scope: Scope,
) -> Result<TrackerChoice, ChooseError> {
    let build = |kind| match builders.iter().find(|(built, _)| *built == kind) {
        Some((_, build)) => build(roots, scope).map_err(|error| reason(kind, error)),
        None => Err("this build of superhue does not have it".to_owned()),
    };
    if let Some(kind) = wanted {
        return match build(kind) {
            Ok(tracker) => Ok(TrackerChoice {
                tracker,
                why: "chosen by --tracker".to_owned(),
            }),
            Err(why) => Err(ChooseError::Wanted {
                kind,
                why,
                remedy: "leave the choice to superhue, or see `superhue check` for what works"
                    .to_owned(),
            }),
        };
    }
    let mut tried = Vec::new();
    for kind in TrackerKind::ALL {
        match build(kind) {
            Ok(tracker) => {
                let why = match tried.as_slice() {
                    [] => "the first choice, and it works here".to_owned(),
                    tried => format!("the first choice that works here ({})", reasons(tried)),
                };
                return Ok(TrackerChoice { tracker, why });
            }
            Err(why) => tried.push((kind, why)),
        }
    }
    Err(ChooseError::None { tried })
}

/// Returns the error without the name of the tracker, which the caller prints.
fn reason(kind: TrackerKind, error: TrackError) -> String {
    match error {
        TrackError::Unusable { kind: named, why } if named == kind => why,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use superhue_model::{ProcessId, VirtRange};

    use super::super::{ArmingResult, Reading};
    use super::*;

    struct Fake(TrackerKind);

    impl Tracker for Fake {
        fn kind(&self) -> TrackerKind {
            self.0
        }
        fn arm(&mut self, _: ProcessId) -> Result<ArmingResult, TrackError> {
            Ok(ArmingResult {
                took: Duration::ZERO,
                elsewhere: Duration::ZERO,
                locked: Duration::ZERO,
                flushed: true,
            })
        }
        fn read(&mut self, _: ProcessId, _: &[VirtRange]) -> Result<Reading, TrackError> {
            Ok(Reading::Pages(Vec::new()))
        }
        fn release(&mut self, _: ProcessId) {}
    }

    fn refused(_: &Roots, _: Scope) -> Result<Box<dyn Tracker>, TrackError> {
        Err(TrackError::Unusable {
            kind: TrackerKind::Ptwalk,
            why: "bpf(2) said EPERM; run as root".to_owned(),
        })
    }

    const SOME: &[(TrackerKind, Build)] = &[
        (TrackerKind::Ptwalk, refused),
        (TrackerKind::Idle, |_, _| {
            Ok(Box::new(Fake(TrackerKind::Idle)))
        }),
        (TrackerKind::Damon, |_, _| {
            Ok(Box::new(Fake(TrackerKind::Damon)))
        }),
    ];

    fn choice(
        builders: &[(TrackerKind, Build)],
        wanted: Option<TrackerKind>,
    ) -> Result<(TrackerKind, String), String> {
        choose_of(builders, &Roots::default(), wanted, Scope::Anonymous)
            .map(|chosen| (chosen.tracker.kind(), chosen.why))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_best_that_works_is_taken_and_says_why() {
        assert_eq!(
            choice(SOME, None),
            Ok((
                TrackerKind::Idle,
                "the first choice that works here (ptwalk: bpf(2) said EPERM; run as root)"
                    .to_owned()
            ))
        );
        assert_eq!(choice(&SOME[1..], None).unwrap().0, TrackerKind::Idle);
        const FIRST: &[(TrackerKind, Build)] = &[(TrackerKind::Ptwalk, |_, _| {
            Ok(Box::new(Fake(TrackerKind::Ptwalk)))
        })];
        let why = "the first choice, and it works here".to_owned();
        assert_eq!(choice(FIRST, None), Ok((TrackerKind::Ptwalk, why)));
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        assert_eq!(
            choice(SOME, Some(TrackerKind::Damon)),
            Ok((TrackerKind::Damon, "chosen by --tracker".to_owned()))
        );
        let error = choice(SOME, Some(TrackerKind::Ptwalk)).unwrap_err();
        assert!(
            error.contains("ptwalk") && error.contains("EPERM; run as root"),
            "{error}"
        );
        assert!(error.contains("superhue check"), "{error}");
    }

    #[test]
    fn without_any_every_reason_is_told() {
        let error = choice(&SOME[..1], None).unwrap_err();
        assert!(error.contains("ptwalk: bpf(2) said EPERM"), "{error}");
        assert!(error.contains("idle: this build"), "{error}");
        assert!(error.contains("damon: this build"), "{error}");
    }
}
