//! Before a command starts: which colors there are, which are wanted, and what agents may take.

use std::env;
use std::time::{Duration, Instant};

use superhue_act::{ColorWish, OracleWish};
use superhue_color::observe::{Judgement, OracleKind};
use superhue_model::{ByteCount, ColorRequest, ColorSet, ColorSetError, PageCount};
use superhue_observe::system::PageColors;
use superhue_sys::thp::ThpSwitch;

use super::placement::{Choice, decide};
use super::{KernelPolicy, geometry, headroom};
use crate::{ColorPlacement, Config, Mechanism};

/// A pool this large serves a program that grows by gigabytes a second between two refills.
const POOL: ByteCount = ByteCount(64 << 20);

/// Less than this and agents would wait for single pages.
const SMALLEST_POOL: ByteCount = ByteCount(1 << 20);

/// Percent of one CPU that an agent may take in the long run to place again what is in use.
const EFFORT: u32 = 10;

/// Names an oracle that needs no timing, for tests: `frames:N` (frame numbers modulo N; needs the right to see
/// them), `dealt:N` (numbers that mean nothing), `poor:N` (likewise, and no page has the last), `drifting:N` (as
/// `frames`, until it says that colors have changed) or anything else, which is a machine where nobody can tell.
const TEST_ORACLE: &str = "SUPERHUE_TEST_ORACLE";

/// Why memory cannot be placed by colors.
#[derive(Debug, thiserror::Error)]
pub enum ColorsError {
    /// The colors asked for do not exist.
    #[error("--colors {request}: {source}")]
    Request {
        /// What was asked for.
        request: ColorRequest,
        /// Why not.
        source: ColorSetError,
    },
    /// Colors cannot be told on this machine.
    #[error("--colors: {0}; superhue colors says more")]
    Oracle(String),
    /// The kernel was asked for, and does not place.
    #[error("--placement kernel: {0}")]
    Kernel(String),
    /// The kernel places, but not on these colors.
    #[error("--colors: {0}")]
    Refused(String),
    /// There is no agent to place memory from inside.
    #[error(
        "--colors needs the agent, {}: it was looked for beside superhue and in ../lib/superhue",
        superhue_mailbox::AGENT_FILE
    )]
    NoAgent,
    /// Too little memory is left.
    #[error(
        "--colors: only {0} of memory may be taken for a pool of pages, at least {SMALLEST_POOL} is needed"
    )]
    Memory(ByteCount),
}

/// What was found out and decided before the command starts.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) request: ColorRequest,
    /// The colors wanted; `None` where nobody can tell what colors there are.
    pub(crate) set: Option<ColorSet>,
    pub(crate) strict: bool,
    pub(crate) oracle: &'static str,
    /// What the kernel is to be asked for, if it places.
    pub(crate) kernel: Option<KernelPolicy>,
    /// What a pool may hold.
    pub(crate) pool: PageCount,
    /// Why the command runs without colors, if it does.
    pub(crate) without: Option<String>,
    pub(crate) took: Duration,
    pub(crate) notes: Vec<String>,
}

impl Prepared {
    /// What `config` asks for, with what agents are to be told; `None` if it asks for no colors.
    ///
    /// Where colors cannot be told, or there is no memory for a pool, nothing is told to agents: the command runs as
    /// it would without, and the report says why.
    ///
    /// # Errors
    /// See [`ColorsError`]. That colors cannot be told, or memory is short, is one only if `config` is strict.
    pub(crate) fn new(config: &Config) -> Result<Option<(Self, Option<ColorWish>)>, ColorsError> {
        if config.colors == ColorRequest::Off {
            return Ok(None);
        }
        let mut notes = Vec::new();
        match Self::wish(config, &mut notes) {
            Err(
                error @ (ColorsError::Oracle(_) | ColorsError::Memory(_) | ColorsError::Refused(_)),
            ) if config.dry_run || !config.strict && config.placement != ColorPlacement::Kernel => {
                Ok(Some((Self::without(config, &error, notes), None)))
            }
            other => other,
        }
    }

    /// For a command that runs without colors.
    fn without(config: &Config, error: &ColorsError, notes: Vec<String>) -> Self {
        Self {
            request: config.colors.clone(),
            set: None,
            strict: config.strict,
            oracle: "none",
            kernel: None,
            pool: PageCount(0),
            without: Some(error.to_string()),
            took: Duration::ZERO,
            notes,
        }
    }

    fn wish(
        config: &Config,
        notes: &mut Vec<String>,
    ) -> Result<Option<(Self, Option<ColorWish>)>, ColorsError> {
        let begun = Instant::now();
        if env::var_os(TEST_ORACLE).is_none() || config.placement == ColorPlacement::Kernel {
            let coloring = PageColors::read(&config.roots);
            let judge = |coloring: &PageColors| geometry::judge(&config.roots, coloring);
            let choice = decide(config.placement, coloring.as_ref(), judge)?;
            match (choice, coloring) {
                (Choice::Kernel(judgement), Ok(coloring)) => {
                    let prepared = Self::by_kernel(config, &coloring, judgement, begun)?;
                    return Ok(prepared.map(|prepared| (prepared, None)));
                }
                (Choice::Agent(note), _) => notes.extend(note),
                // Nothing is chosen without having been read.
                (Choice::Kernel(_), Err(_)) => {}
            }
        }
        if crate::launch::agent_path().is_none() {
            return Err(ColorsError::NoAgent);
        }
        let (oracle, colors) = oracle(config.dry_run)?;
        let set = config.colors.of(colors);
        let set = set.map_err(|source| ColorsError::Request {
            request: config.colors.clone(),
            source,
        })?;
        let Some(set) = set else { return Ok(None) };
        let pool = pool_limit(config, &set)?;
        if !set.is_all() {
            notes.push(
                "a superpage spans all colors: superpages are switched off for the command"
                    .to_owned(),
            );
        }
        let prepared = Self {
            request: config.colors.clone(),
            strict: config.strict,
            oracle: name_of(&oracle),
            kernel: None,
            pool,
            took: begun.elapsed(),
            notes: std::mem::take(notes),
            set: Some(set.clone()),
            without: (config.dry_run).then(|| "a dry run places nothing".to_owned()),
        };
        let wish = ColorWish {
            set,
            strict: config.strict,
            oracle,
            pool,
            seed: u64::from(std::process::id()) << 32 | u64::from(begun.elapsed().subsec_nanos()),
            effort: EFFORT,
        };
        Ok(Some((prepared, Some(wish))))
    }

    /// For a command whose memory the kernel places.
    fn by_kernel(
        config: &Config,
        coloring: &PageColors,
        judgement: Judgement,
        begun: Instant,
    ) -> Result<Option<Self>, ColorsError> {
        let set = config.colors.of(coloring.colors());
        let set = set.map_err(|source| ColorsError::Request {
            request: config.colors.clone(),
            source,
        })?;
        let Some(set) = set else { return Ok(None) };
        let policy = KernelPolicy::new(set.clone(), config.strict, coloring, judgement);
        let policy = policy.ok_or_else(|| ColorsError::Kernel("it knows no colors".to_owned()))?;
        policy
            .allowed()
            .map_err(|errno| ColorsError::Refused(policy.explain(errno, &config.roots)))?;
        Ok(Some(Self {
            request: config.colors.clone(),
            strict: config.strict,
            oracle: OracleKind::Kernel.name(),
            kernel: Some(policy),
            pool: PageCount(0),
            without: (config.dry_run).then(|| "a dry run places nothing".to_owned()),
            took: begun.elapsed(),
            notes: if set.is_all() {
                Vec::new()
            } else {
                vec![
                    "a superpage spans all colors: the kernel gives none to the command".to_owned(),
                ]
            },
            set: Some(set),
        }))
    }

    /// Who places memory.
    pub(crate) const fn placement(&self) -> &'static str {
        match (&self.without, &self.kernel) {
            (Some(_), _) => "none",
            (None, Some(_)) => "kernel",
            (None, None) => "agent",
        }
    }

    /// What the command is to be given, if the kernel places its memory.
    pub(crate) fn policy(&self) -> Option<&KernelPolicy> {
        self.kernel.as_ref().filter(|_| self.without.is_none())
    }

    /// Adapts how superpages are brought about: memory on some of the colors cannot have any.
    pub(crate) fn adapt(&self, mechanism: &mut Mechanism) {
        if self.set.as_ref().is_some_and(|set| !set.is_all()) {
            if self.kernel.is_none() {
                mechanism.switch = ThpSwitch::Never;
            }
            mechanism.collapses = false;
            mechanism.wishes.advise = false;
            mechanism.wishes.serve = false;
        }
    }
}

const fn name_of(oracle: &OracleWish) -> &'static str {
    match oracle {
        OracleWish::Measured(_) => "measured",
        OracleWish::Frames => "frames",
        OracleWish::Dealt => "dealt",
        OracleWish::Poor => "poor",
        OracleWish::Drifting => "drifting",
    }
}

/// What tells colors, and how many there are. Nothing is looked for that a dry run has no use for.
fn oracle(dry_run: bool) -> Result<(OracleWish, usize), ColorsError> {
    if let Ok(text) = env::var(TEST_ORACLE) {
        return test_oracle(&text)
            .ok_or_else(|| ColorsError::Oracle(format!("{TEST_ORACLE}={text} means nothing")));
    }
    super::palette::open(dry_run)
}

fn test_oracle(text: &str) -> Option<(OracleWish, usize)> {
    let (name, colors) = text.split_once(':')?;
    let colors = colors.parse().ok().filter(|&colors| colors > 0)?;
    match name {
        "frames" => Some((OracleWish::Frames, colors)),
        "dealt" => Some((OracleWish::Dealt, colors)),
        "poor" if colors > 1 => Some((OracleWish::Poor, colors)),
        "drifting" => Some((OracleWish::Drifting, colors)),
        _ => None,
    }
}

/// Pages that a pool may hold: more for a small set, since what it has no use for is kept until it is full.
fn pool_limit(config: &Config, set: &ColorSet) -> Result<PageCount, ColorsError> {
    let wanted = POOL.0 * set.colors() as u64 / set.len().max(1) as u64;
    let room = headroom::for_pools(&config.roots).unwrap_or(POOL);
    let limit = ByteCount(wanted.min(room.0));
    if limit < SMALLEST_POOL {
        return Err(ColorsError::Memory(limit));
    }
    Ok(PageCount(limit.0 / superhue_model::BASE_PAGE_SIZE))
}

#[cfg(test)]
impl Prepared {
    /// With nothing but a policy.
    pub(crate) fn for_tests(request: ColorRequest, policy: KernelPolicy) -> Self {
        Self {
            request,
            set: Some(policy.set.clone()),
            strict: policy.strict,
            oracle: OracleKind::Kernel.name(),
            kernel: Some(policy),
            pool: PageCount(0),
            without: None,
            took: Duration::ZERO,
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oracles_for_tests_are_named_with_their_colors() {
        assert!(matches!(
            test_oracle("frames:8"),
            Some((OracleWish::Frames, 8))
        ));
        assert!(matches!(
            test_oracle("dealt:3"),
            Some((OracleWish::Dealt, 3))
        ));
        for text in ["", "frames", "frames:0", "frames:x", "other:8"] {
            assert!(test_oracle(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_smaller_set_gets_a_larger_pool() {
        let config = Config::default();
        let few = ColorRequest::List(vec![(0, 3)]).of(32).unwrap().unwrap();
        let all = ColorRequest::Spread.of(32).unwrap().unwrap();
        assert!(pool_limit(&config, &few).unwrap() >= pool_limit(&config, &all).unwrap());
    }
}
