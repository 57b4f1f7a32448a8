//! Limits on numbers that must not suffer, read in a thread of their own, so that a slow command delays nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use superhue_measure::trial::TrialGuard;
use superhue_model::{ByteCount, parse_duration};

use super::ask::Source;

/// Interval between two readings of a guard; longer if a reading takes long.
const EVERY: Duration = Duration::from_secs(1);

/// Failed readings in a row after which a guard ends the trial, too.
const MAX_FAILED_READINGS: u32 = 3;

/// A name, a comparison and a limit: `p99 < 5ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Name of the limited number.
    pub name: String,
    /// True if the limit is an upper bound, false if it is a lower bound.
    pub is_most: bool,
    /// The bound, in seconds, bytes, or the unit of the number.
    pub value: f64,
    text: String,
}

impl Limit {
    /// Reads `NAME < LIMIT` or `NAME > LIMIT`, where LIMIT is a number, a time (`5ms`, in seconds then) or a size (`1G`, in bytes).
    ///
    /// # Errors
    /// A sentence that names the fault of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not NAME < LIMIT or NAME > LIMIT, e.g. 'p99 < 5ms'");
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, rest) = text.split_at(at);
        let (name, limit) = (name.trim(), rest[1..].trim());
        if name.is_empty() || limit.is_empty() {
            return Err(wrong());
        }
        let number = limit.parse::<f64>().ok().filter(|it| it.is_finite());
        let time = || parse_duration(limit).ok().map(|it| it.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "a limit")]
        let size = || limit.parse::<ByteCount>().ok().map(|it| it.0 as f64);
        let value = number.or_else(time).or_else(size);
        let value = value.ok_or_else(|| {
            format!("`{limit}` in `{text}` is no number, no time (5ms) and no size (1G)")
        })?;
        Ok(Self {
            name: name.to_owned(),
            is_most: rest.starts_with('<'),
            value,
            text: text.trim().to_owned(),
        })
    }

    fn is_crossed(&self, value: f64) -> bool {
        if self.is_most {
            value >= self.value
        } else {
            value <= self.value
        }
    }
}

/// A limit, and the source of its numbers.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The limit.
    pub limit: Limit,
    /// Source of its numbers.
    pub source: GuardSource,
}

/// Source of a guard's numbers.
#[derive(Debug, Clone)]
pub enum GuardSource {
    /// A command or a query.
    Asked(Source),
    /// Resident memory of the target, in bytes (shared memory counts for each process).
    Rss,
}

#[derive(Debug, Default)]
struct State {
    guards: Vec<TrialGuard>,
    /// First alarm, which ends the trial.
    alarm: Option<Alarm>,
}

/// Reason for which a guard ends the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Alarm {
    /// A value has crossed its limit.
    Crossed(String),
    /// The readings of a guard failed too often.
    Unreadable(String),
}

/// The thread that reads all guards in turn.
#[derive(Debug)]
pub(super) struct Guards {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Function that returns resident bytes of the target at the moment.
pub(super) type Rss = Arc<dyn Fn() -> Option<f64> + Send + Sync>;

impl Guards {
    /// Starts to read all guards.
    ///
    /// # Errors
    /// The system cannot start a thread for them.
    pub(super) fn start(guards: Vec<Guard>, rss: Rss) -> std::io::Result<Self> {
        let told = guards.iter().map(|guard| TrialGuard {
            condition: guard.limit.text.clone(),
            readings: 0,
            last: None,
            worst: None,
        });
        let state = State {
            guards: told.collect(),
            alarm: None,
        };
        let (state, stop) = (
            Arc::new(Mutex::new(state)),
            Arc::new(AtomicBool::new(false)),
        );
        let thread = if guards.is_empty() {
            None
        } else {
            let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
            let watch = move || watch(&guards, &rss, &state, &stop);
            let thread = std::thread::Builder::new().name("superhue-guard".to_owned());
            Some(thread.spawn(watch)?)
        };
        Ok(Self {
            state,
            stop,
            thread,
        })
    }

    /// Returns the alarm that ends the trial, if there is one.
    pub(super) fn alarm(&self) -> Option<Alarm> {
        lock(&self.state).alarm.clone()
    }

    /// Returns true once every guard has been read at least once, or one has raised an alarm.
    pub(super) fn has_looked(&self) -> bool {
        let state = lock(&self.state);
        state.alarm.is_some() || state.guards.iter().all(|guard| guard.readings > 0)
    }

    /// Returns the readings of all guards.
    pub(super) fn told(&self) -> Vec<TrialGuard> {
        lock(&self.state).guards.clone()
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(guards: &[Guard], rss: &Rss, state: &Mutex<State>, stop: &AtomicBool) {
    let mut in_vain = vec![0; guards.len()];
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        for ((index, guard), in_vain) in guards.iter().enumerate().zip(&mut in_vain) {
            let read = match &guard.source {
                GuardSource::Asked(source) => source
                    .ask(&mut || stop.load(Ordering::Relaxed))
                    .map_err(|error| error.to_string()),
                GuardSource::Rss => rss().ok_or_else(|| "the target has no process".to_owned()),
            };
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let mut state = lock(state);
            let limit = &guard.limit;
            match read {
                Ok(value) => {
                    *in_vain = 0;
                    if let Some(told) = state.guards.get_mut(index) {
                        told.readings += 1;
                        told.last = Some(value);
                        let worst = told.worst.unwrap_or(value);
                        told.worst = Some(if limit.is_most {
                            worst.max(value)
                        } else {
                            worst.min(value)
                        });
                    }
                    if limit.is_crossed(value) {
                        let text = format!("`{}` was crossed: {value}", limit.text);
                        state.alarm.get_or_insert(Alarm::Crossed(text));
                        return;
                    }
                }
                // Resident memory cannot be read while the target restarts, so that is no alarm; but it must have been read once.
                Err(why) => {
                    *in_vain += 1;
                    let was_read = state.guards.get(index).is_some_and(|it| it.readings > 0);
                    let restarts = matches!(guard.source, GuardSource::Rss) && was_read;
                    if *in_vain >= MAX_FAILED_READINGS && !restarts {
                        let text = format!("guard `{}` cannot be read: {why}", limit.text);
                        state.alarm.get_or_insert(Alarm::Unreadable(text));
                        return;
                    }
                }
            }
        }
        // The readings take at most a tenth of the time.
        std::thread::park_timeout(EVERY.max(begun.elapsed() * 9));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_times_and_sizes() {
        let limit = |text| Limit::parse(text).unwrap();
        let p99 = limit("p99 < 5ms");
        assert_eq!(
            (p99.name.as_str(), p99.is_most, p99.value),
            ("p99", true, 0.005)
        );
        assert_eq!(limit("rss<1G").value, 1_073_741_824.0);
        let ops = limit(" ops > 1e3 ");
        assert!(ops.is_crossed(999.0) && !ops.is_crossed(1001.0));
        assert!(p99.is_crossed(0.005) && !p99.is_crossed(0.004));
        for wrong in [
            "",
            "p99",
            "p99 <",
            "< 5",
            "p99 < fast",
            "p99 = 5",
            "p99 < nan",
        ] {
            assert!(Limit::parse(wrong).is_err(), "{wrong}");
        }
    }

    fn alarm_of(command: &str) -> (Option<Alarm>, Vec<TrialGuard>) {
        let guard = Guard {
            limit: Limit::parse("it < 5").unwrap(),
            source: GuardSource::Asked(Source::Command {
                command: command.to_owned(),
                regex: None,
            }),
        };
        let guards = Guards::start(vec![guard], Arc::new(|| None)).unwrap();
        // A reading takes at most 5 s, the pause after it nine times as long, and an alarm needs three readings.
        let until = Instant::now() + Duration::from_secs(300);
        loop {
            assert!(Instant::now() < until, "{:?}", guards.told());
            let alarm = guards.alarm();
            let readings = guards.told()[0].readings;
            if alarm.is_some() || readings > 1 {
                return (alarm, guards.told());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_limit_that_is_crossed_or_cannot_be_read_is_an_alarm() {
        let (alarm, told) = alarm_of("echo 3");
        assert_eq!((alarm, told[0].worst), (None, Some(3.0)));
        let (alarm, _) = alarm_of("echo 5");
        assert!(matches!(alarm, Some(Alarm::Crossed(_))), "{alarm:?}");
        let (alarm, _) = alarm_of("exit 1");
        assert!(matches!(alarm, Some(Alarm::Unreadable(_))), "{alarm:?}");
    }
}
