//! Pure functions that turn figures into a verdict in words, and into suggestions.

use std::collections::BTreeMap;

use serde::Serialize;
use superhue_model::ByteCount;

use super::estimate::Interval;
use super::observe::{LEAST_CPUS, LEAST_MEMORY};
use super::{ProcessAdvice, ServiceAdvice};
use crate::AllocatorRequest;

/// A gain below this counts as none: 1 % of the CPU time.
pub const LEAST_GAIN: f64 = 0.01;

/// Share of memory in huge pages above which too little is left to gain.
const NEARLY_ALL: f64 = 0.95;

/// Reason why nothing can be gained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoGain {
    /// Hardly any memory.
    Small,
    /// Memory that is huge already.
    Huge,
    /// Touched memory that fits the TLB, or too few accesses.
    FewMisses,
    /// End of the process before the answer.
    Ended,
}

/// State of a process or service, as far as advice goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// In use, with an estimate of the gain.
    Measured,
    /// Memory that could be huge, but hardly any use of the CPU: the gain shows under load.
    Idle,
    /// Page tables that the caller may not read.
    Unreadable,
    /// Memory that cannot be huge, for a reason that `status --why` names.
    Blocked,
    /// Memory that is huge already.
    Huge,
    /// Less memory than is worth a policy.
    Small,
    /// End of the process.
    Ended,
    /// Unknown gain.
    Unknown,
}

/// Verdict on the gain from huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is 1 % or more.
    Gain,
    /// All of it is below 1 %, or there is nothing to gain from.
    NoGain,
    /// The interval holds both.
    Unclear,
    /// There is no estimate.
    Unknown,
}

/// Gives `found` its verdict, sentence and commands; a process that has ended gets no commands.
pub(super) fn conclude(
    found: &mut ProcessAdvice,
    runs: bool,
    reach: Option<ByteCount>,
    tracker: Option<&str>,
) {
    found.attempts.clear();
    if !runs {
        found.verdict = Verdict::NoGain;
        found.no_gain = Some(NoGain::Ended);
        found.state = State::Ended;
        "it ended while it was looked at".clone_into(&mut found.because);
        return;
    }
    (found.verdict, found.no_gain, found.because) = verdict(found, reach, tracker);
    found.state = state(found);
    if matches!(found.verdict, Verdict::Gain | Verdict::Unclear) {
        found.attempts = attempts(found);
    } else if found.verdict == Verdict::Unknown
        && found.state != State::Idle
        && found
            .possible_bytes
            .is_some_and(|bytes| bytes >= LEAST_MEMORY)
    {
        found.attempts = vec![format!("superhue trial {}", found.pid)];
    }
}

/// Returns the state of a process that runs; obstacles come before a lack of load.
fn state(found: &ProcessAdvice) -> State {
    if found.estimate.is_some() && is_busy(found) {
        return State::Measured;
    }
    if found.rss_bytes.is_some_and(|bytes| bytes < LEAST_MEMORY) {
        return State::Small;
    }
    let Some((possible, huge)) = found.possible_bytes.zip(found.huge_bytes) else {
        return if found.is_denied {
            State::Unreadable
        } else {
            State::Unknown
        };
    };
    if possible < LEAST_MEMORY {
        return if is_nearly_all(possible, huge) {
            State::Huge
        } else {
            State::Blocked
        };
    }
    if !is_busy(found) {
        return State::Idle;
    }
    State::Unknown
}

const NO_GAIN: Interval = Interval {
    low: 0.0,
    likely: 0.0,
    high: 0.0,
};

fn is_nearly_all(possible: ByteCount, huge: ByteCount) -> bool {
    huge >= LEAST_MEMORY && huge.0 as f64 >= (possible + huge).0 as f64 * NEARLY_ALL
}

fn verdict(
    found: &ProcessAdvice,
    reach: Option<ByteCount>,
    tracker: Option<&str>,
) -> (Verdict, Option<NoGain>, String) {
    let none = |reason, text: String| (Verdict::NoGain, Some(reason), text);
    let unknown = |text: String| (Verdict::Unknown, None, text);
    if let Some(one) = found.estimate.as_ref().filter(|_| is_busy(found)) {
        let Interval { low, likely, high } = one.gain;
        let percent = |share: f64| format!("{:.0}", share * 100.0);
        if high < LEAST_GAIN {
            let reach = reach.map_or_else(String::new, |reach| format!(" (it reaches {reach})"));
            let text = format!(
                "what it touches fits the TLB{reach}, or it touches too little of its memory"
            );
            return none(NoGain::FewMisses, text);
        }
        let text = format!(
            "about {} % of its CPU time ({} to {} %) goes into TLB misses that huge pages would save",
            percent(likely),
            percent(low),
            percent(high)
        );
        return (
            if low >= LEAST_GAIN {
                Verdict::Gain
            } else {
                Verdict::Unclear
            },
            None,
            text,
        );
    }
    if found.rss_bytes.is_some_and(|bytes| bytes < LEAST_MEMORY) {
        let text = format!("it has less than {LEAST_MEMORY} in memory, which the TLB reaches");
        return none(NoGain::Small, text);
    }
    let could = found.possible_bytes.zip(found.huge_bytes);
    if let Some((possible, huge)) = could.filter(|(possible, _)| *possible < LEAST_MEMORY) {
        if is_nearly_all(possible, huge) {
            return none(
                NoGain::Huge,
                format!("{huge} of its memory are huge already"),
            );
        }
        let most = found.obstacles.first();
        let why = most.map_or_else(String::new, |one| {
            format!("; most of it ({}): {}", one.bytes, one.text)
        });
        return unknown(format!("only {possible} could be huge{why}"));
    }
    if !is_busy(found) && could.is_some() {
        return unknown(format!(
            "it used {:.1} % of a CPU: the gain shows under load",
            found.cpus * 100.0
        ));
    }
    let why = match (&found.unknown_because, tracker) {
        (Some(why), _) => why.clone(),
        (None, None) => "accesses cannot be tracked here".to_owned(),
        (None, Some(_)) => "it could not be watched".to_owned(),
    };
    unknown(format!("the gain is not known: {why}"))
}

fn is_busy(found: &ProcessAdvice) -> bool {
    found.cpus >= LEAST_CPUS
}

/// Returns commands to try, the safest first.
fn attempts(found: &ProcessAdvice) -> Vec<String> {
    let pid = found.pid;
    let mut attempts = vec![
        format!("superhue trial {pid}"),
        format!("superhue attach {pid}"),
    ];
    if let Some(service) = found.service.as_deref().filter(|service| is_unit(service)) {
        attempts.push(rule(service));
    }
    attempts
}

/// Returns lines for a drop-in of the unit (`systemctl edit`, systemd.exec(5)), by which the program's allocator asks for huge pages.
pub(super) fn drop_in(request: AllocatorRequest) -> String {
    format!("[Service]\nEnvironment={request}")
}

fn is_unit(service: &str) -> bool {
    service.ends_with(".service") || service.ends_with(".scope")
}

/// Returns a rule for the daemon.
fn rule(service: &str) -> String {
    let name = service.rsplit_once('.').map_or(service, |(name, _)| name);
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "._@-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = name.chars().map(plain).collect();
    let unit = toml_string(service);
    format!("[[rule]]\nname = \"{name}\"\nunit = {unit}")
}

/// Returns the name of a unit as a string of TOML: systemd puts backslashes into names.
#[must_use]
pub fn toml_string(name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// Groups processes by service.
pub(super) fn services(processes: &[ProcessAdvice]) -> Vec<ServiceAdvice> {
    let mut groups: BTreeMap<&str, Vec<&ProcessAdvice>> = BTreeMap::new();
    for found in processes {
        if let Some(service) = found.service.as_deref() {
            groups.entry(service).or_default().push(found);
        }
    }
    let mut services: Vec<ServiceAdvice> = groups
        .into_iter()
        .map(|(service, members)| {
            // Unknown in one is unknown in all.
            let sum = |size: fn(&ProcessAdvice) -> Option<ByteCount>| {
                let is_small = |found: &ProcessAdvice| found.rss_bytes < Some(LEAST_MEMORY);
                let sizes = members.iter().map(|found| match size(found) {
                    None if is_small(found) => Some(ByteCount(0)),
                    known => known,
                });
                sizes.sum::<Option<ByteCount>>()
            };
            let state = state_of_all(&members);
            let gain = match state {
                State::Measured | State::Small | State::Huge => together(&members),
                State::Idle => Err("it hardly uses the CPU: ask again under load".to_owned()),
                State::Blocked => Err("its memory cannot be huge now".to_owned()),
                State::Unreadable => Err("its memory may not be read".to_owned()),
                State::Ended => Err("it ended".to_owned()),
                State::Unknown => Err("a process of it could not be estimated".to_owned()),
            };
            let (gain, gain_unknown_because) = match gain {
                Ok(gain) => (Some(gain), None),
                Err(why) => (None, Some(why)),
            };
            let is_worth = gain.is_some_and(|gain| gain.high >= LEAST_GAIN);
            ServiceAdvice {
                service: service.to_owned(),
                processes: members.len(),
                state,
                cpus: members.iter().map(|found| found.cpus).sum(),
                rss_bytes: sum(|found| found.rss_bytes),
                huge_bytes: sum(|found| found.huge_bytes),
                possible_bytes: sum(|found| found.possible_bytes),
                gain,
                gain_unknown_because,
                attempts: if is_worth && is_unit(service) {
                    vec![rule(service)]
                } else {
                    Vec::new()
                },
            }
        })
        .collect();
    let rank = |one: &ServiceAdvice| one.gain.map_or(0.0, |gain| gain.likely * one.cpus);
    services.sort_by(|a, b| {
        rank(b)
            .total_cmp(&rank(a))
            .then_with(|| b.rss_bytes.cmp(&a.rss_bytes))
    });
    services
}

/// Returns the state of a service: that of its busy processes if it has any, else that of its largest process.
fn state_of_all(members: &[&ProcessAdvice]) -> State {
    let busy = || members.iter().filter(|found| is_busy(found));
    let has = |state| busy().any(|found| found.state == state);
    for state in [State::Unreadable, State::Unknown, State::Measured] {
        if has(state) {
            return state;
        }
    }
    let alive = members.iter().filter(|found| found.state != State::Ended);
    let largest = busy().max_by_key(|found| found.rss_bytes);
    let largest = largest.or_else(|| alive.max_by_key(|found| found.rss_bytes));
    largest.map_or(State::Ended, |found| found.state)
}

/// Returns the gain of several processes: the mean, weighted by the CPU time that they use. Blocked memory gains nothing as things are, and idle
/// processes use none of that time.
fn together(members: &[&ProcessAdvice]) -> Result<Interval, String> {
    let mut sum = NO_GAIN;
    let mut cpus = 0.0;
    for found in members {
        let gain = match (&found.estimate, found.verdict) {
            (Some(one), _) => one.gain,
            (None, Verdict::NoGain) => NO_GAIN,
            (None, _) if found.state == State::Blocked || !is_busy(found) => NO_GAIN,
            (None, _) => return Err(format!("that of process {} is not known", found.pid)),
        };
        cpus += found.cpus;
        sum.low += gain.low * found.cpus;
        sum.likely += gain.likely * found.cpus;
        sum.high += gain.high * found.cpus;
    }
    let share = |gain: f64| if cpus > 0.0 { gain / cpus } else { 0.0 };
    Ok(Interval {
        low: share(sum.low),
        likely: share(sum.likely),
        high: share(sum.high),
    })
}

#[cfg(test)]
mod tests {
    use superhue_model::ByteCount;

    use super::*;
    use crate::advise::document::Obstacle;
    use crate::why::Reason;

    const MIB: ByteCount = ByteCount(1 << 20);

    /// Returns a process with 100 MiB that could be huge, which uses `cpus`.
    fn process(pid: u32, cpus: f64) -> ProcessAdvice {
        let mut found = ProcessAdvice {
            name: "server".to_owned(),
            service: Some("server.service".to_owned()),
            cpus,
            rss_bytes: Some(ByteCount(110 << 20)),
            anonymous_bytes: Some(ByteCount(100 << 20)),
            huge_bytes: Some(ByteCount(0)),
            possible_bytes: Some(ByteCount(100 << 20)),
            ..ProcessAdvice::unseen(pid)
        };
        conclude(&mut found, true, None, Some("ptwalk"));
        found
    }

    fn changed(mut found: ProcessAdvice, change: impl FnOnce(&mut ProcessAdvice)) -> ProcessAdvice {
        change(&mut found);
        conclude(&mut found, true, None, Some("ptwalk"));
        found
    }

    fn blocked(pid: u32, cpus: f64) -> ProcessAdvice {
        changed(process(pid, cpus), |found| {
            found.possible_bytes = Some(MIB);
            found.obstacles = vec![Obstacle {
                reason: Reason::Disabled,
                text: "huge pages are switched off for it",
                bytes: ByteCount(99 << 20),
            }];
        })
    }

    fn unreadable(pid: u32, cpus: f64) -> ProcessAdvice {
        changed(process(pid, cpus), |found| {
            (found.possible_bytes, found.huge_bytes) = (None, None);
            found.is_denied = true;
            found.unknown_because = Some("needs CAP_SYS_PTRACE".to_owned());
        })
    }

    #[test]
    fn what_shows_only_later_is_unknown_and_not_zero() {
        let expected = [
            (process(1, 0.001), State::Idle, "under load"),
            (blocked(2, 0.5), State::Blocked, "switched off"),
            (blocked(3, 0.0), State::Blocked, "switched off"),
            (unreadable(4, 0.5), State::Unreadable, "CAP_SYS_PTRACE"),
            (process(5, 0.5), State::Unknown, "could not be watched"),
        ];
        for (found, state, words) in expected {
            assert_eq!((found.state, found.verdict), (state, Verdict::Unknown));
            assert_eq!(found.no_gain, None, "{found:?}");
            assert!(found.because.contains(words), "{found:?}");
            // A trial needs memory to switch, and a load.
            let is_tried = !found.attempts.is_empty();
            assert_eq!(is_tried, state == State::Unknown, "{found:?}");
        }
    }

    #[test]
    fn what_has_nothing_to_gain_has_its_reason() {
        let small = changed(process(1, 0.5), |found| {
            found.rss_bytes = Some(MIB);
        });
        assert_eq!(
            (small.state, small.no_gain),
            (State::Small, Some(NoGain::Small))
        );
        let huge = changed(process(2, 0.0), |found| {
            found.possible_bytes = Some(MIB);
            found.huge_bytes = Some(ByteCount(100 << 20));
        });
        assert_eq!(
            (huge.state, huge.no_gain),
            (State::Huge, Some(NoGain::Huge))
        );
        let mut ended = process(3, 0.5);
        conclude(&mut ended, false, None, Some("ptwalk"));
        assert_eq!(
            (ended.state, ended.no_gain),
            (State::Ended, Some(NoGain::Ended))
        );
        assert!(ended.attempts.is_empty());
    }

    #[test]
    fn a_service_has_the_state_of_what_is_busy_in_it() {
        let of = |members: Vec<ProcessAdvice>| {
            let found = services(&members);
            assert_eq!(found.len(), 1);
            found.into_iter().next().unwrap()
        };
        let idle = of(vec![process(1, 0.0), process(2, 0.001)]);
        assert_eq!((idle.state, idle.processes), (State::Idle, 2));
        assert!(idle.gain.is_none() && idle.attempts.is_empty());
        assert_eq!(idle.possible_bytes, Some(ByteCount(200 << 20)));
        let mixed = of(vec![process(1, 0.0), blocked(2, 0.5)]);
        assert_eq!(mixed.state, State::Blocked);
        assert!(mixed.gain.is_none(), "{mixed:?}");
        let unknown = of(vec![blocked(1, 0.5), unreadable(2, 0.5)]);
        assert_eq!(unknown.state, State::Unreadable);
        // Unknown in one is unknown in the sum.
        assert_eq!((unknown.huge_bytes, unknown.possible_bytes), (None, None));
        assert!(unknown.gain.is_none() && unknown.gain_unknown_because.is_some());
        let huge = |pid| {
            changed(process(pid, 0.5), |found| {
                found.possible_bytes = Some(MIB);
                found.huge_bytes = Some(ByteCount(100 << 20));
            })
        };
        let huge = of(vec![huge(1), process(2, 0.001)]);
        assert_eq!(
            (huge.state, huge.gain.map(|gain| gain.high)),
            (State::Huge, Some(0.0))
        );
    }
}
