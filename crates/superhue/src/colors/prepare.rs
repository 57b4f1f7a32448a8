//! Decisions before anything is placed: the colors that exist, the colors that are wanted, and the mechanism that places memory.

use std::time::{Duration, Instant};

use superhue_act::{RestoreReport, SwapError};
use superhue_color::oracles::{Judgement, OracleKind, SharedPalette};
use superhue_model::{ColorRequest, ColorSet, ColorSetError};
use superhue_procfs::Roots;
use superhue_procfs::system::PageColors;
use superhue_sys::thp::ThpSwitch;

use super::claims::Claim;
use super::keeper::{Keeper, PlacementGoal};
use super::placement::{Choice, decide};
use super::readiness::Readiness;
use super::swap::SwapOnDemand;
use super::{KernelPolicy, geometry, palette};
use crate::{ColorPlacement, Config, Mechanism};

/// Reason why memory cannot be placed by colors.
#[derive(Debug, thiserror::Error)]
pub enum ColorsError {
    /// The requested colors do not exist.
    #[error("--colors {request}: {source}")]
    Request {
        /// The request.
        request: ColorRequest,
        /// Reason why not.
        source: ColorSetError,
    },
    /// Colors cannot be measured on this machine.
    #[error("--colors: {0}; superhue colors says more")]
    Oracle(String),
    /// Pages of running programs have no swap to go out to.
    #[error("--colors: {0}")]
    Swap(#[from] SwapError),
    /// The user requires the kernel, and it does not place.
    #[error("--placement kernel: {0}")]
    Kernel(String),
    /// The kernel places, but not on these colors.
    #[error("--colors: {0}")]
    Refused(String),
}

/// Facts and decisions from before the command starts.
#[derive(Debug)]
pub(crate) struct ColorSetup {
    pub(crate) request: ColorRequest,
    /// The colors wanted; `None` where the colors of the machine are not known.
    pub(crate) set: Option<ColorSet>,
    pub(crate) strict: bool,
    pub(crate) oracle: &'static str,
    /// Policy for the kernel, if it places.
    pub(crate) kernel: Option<KernelPolicy>,
    /// Palette for recoloring; held open for as long as memory may be recolored.
    palette: Option<SharedPalette>,
    /// Swap that pages go out to meanwhile.
    swap: Option<SwapOnDemand>,
    /// Shows other superhue processes which colors are kept, for as long as they are.
    claim: Option<Claim>,
    /// Reason if programs run without colors.
    pub(crate) without: Option<String>,
    pub(crate) took: Duration,
    notes: Vec<String>,
}

impl ColorSetup {
    /// Prepares the request of `config` for a command that is to be started; `None` if it requests no colors.
    ///
    /// Where colors cannot be measured the command runs without them, and the report gives the reason.
    ///
    /// # Errors
    /// See [`ColorsError`]. Colors that cannot be measured are an error only if `config` is strict.
    pub(crate) fn new(config: &Config) -> Result<Option<Self>, ColorsError> {
        Self::prepare(config, Self::for_command)
    }

    /// Does the same for processes that run already: the kernel gives colors only to processes that it starts, so Superhue recolors.
    ///
    /// # Errors
    /// As [`Self::new`]; [`ColorsError::Kernel`] if the user requires the kernel.
    pub(crate) fn for_running(config: &Config) -> Result<Option<Self>, ColorsError> {
        if config.options.colors != ColorRequest::Off
            && config.options.placement == ColorPlacement::Kernel
        {
            let why =
                "it gives colors to a command before it starts, not to processes that run already";
            return Err(ColorsError::Kernel(why.to_owned()));
        }
        Self::prepare(config, |config, notes| {
            Self::by_recoloring(config, notes, Instant::now())
        })
    }

    fn prepare(
        config: &Config,
        prepare: impl FnOnce(&Config, &mut Vec<String>) -> Result<Option<Self>, ColorsError>,
    ) -> Result<Option<Self>, ColorsError> {
        if config.options.colors == ColorRequest::Off {
            return Ok(None);
        }
        let mut notes = Vec::new();
        match prepare(config, &mut notes) {
            Err(
                error @ (ColorsError::Oracle(_) | ColorsError::Swap(_) | ColorsError::Refused(_)),
            ) if config.dry_run
                || !config.strict && config.options.placement != ColorPlacement::Kernel =>
            {
                Ok(Some(Self::without(config, &error, notes)))
            }
            other => other,
        }
    }

    /// Prepares programs that run without colors.
    fn without(config: &Config, error: &ColorsError, notes: Vec<String>) -> Self {
        Self {
            request: config.options.colors.clone(),
            set: None,
            strict: config.strict,
            oracle: "none",
            kernel: None,
            palette: None,
            swap: None,
            claim: None,
            without: Some(error.to_string()),
            took: Duration::ZERO,
            notes,
        }
    }

    fn for_command(config: &Config, notes: &mut Vec<String>) -> Result<Option<Self>, ColorsError> {
        let begun = Instant::now();
        let coloring = PageColors::read(&config.roots);
        let judge = |coloring: &PageColors| geometry::judge(&config.roots, coloring);
        let choice = decide(config.options.placement, coloring.as_ref(), judge)?;
        match (choice, coloring) {
            (Choice::Kernel(judgement), Ok(coloring)) => {
                return Self::by_kernel(config, &coloring, judgement, begun);
            }
            (Choice::Recolor(note), _) => notes.extend(note),
            // Unreachable: the kernel is chosen only after its coloring was read.
            (Choice::Kernel(_), Err(_)) => {}
        }
        Self::by_recoloring(config, notes, begun)
    }

    /// Prepares programs whose memory is recolored.
    fn by_recoloring(
        config: &Config,
        notes: &mut Vec<String>,
        begun: Instant,
    ) -> Result<Option<Self>, ColorsError> {
        // The command need not wait for the test of its colors: the test runs when the first page is to be placed.
        let there = (!config.strict && !config.dry_run).then(palette::peek);
        let palette = match there.flatten() {
            Some(palette) => palette,
            None => palette::open(config.dry_run)?,
        };
        let set = config.options.colors.of(palette.palette().colors());
        let set = set.map_err(|source| ColorsError::Request {
            request: config.options.colors.clone(),
            source,
        })?;
        let Some(set) = set else { return Ok(None) };
        if !set.is_all() {
            notes.push("a huge page spans all colors: superhue makes none".to_owned());
            if let Some(why) = palette.alone_because() {
                notes.push(format!(
                    "colors of other superhues have other numbers, so sets may overlap: {why}"
                ));
            }
        }
        let swap =
            (!config.dry_run).then(|| SwapOnDemand::find(&config.roots, config.options.swap));
        let swap = swap.transpose()?;
        Ok(Some(Self {
            request: config.options.colors.clone(),
            set: Some(set),
            strict: config.strict,
            oracle: OracleKind::Measured.name(),
            kernel: None,
            palette: Some(palette),
            swap,
            claim: None,
            without: (config.dry_run).then(|| "a dry run places nothing".to_owned()),
            took: begun.elapsed(),
            notes: std::mem::take(notes),
        }))
    }

    /// Prepares a command whose memory the kernel places.
    fn by_kernel(
        config: &Config,
        coloring: &PageColors,
        judgement: Judgement,
        begun: Instant,
    ) -> Result<Option<Self>, ColorsError> {
        let set = config.options.colors.of(coloring.colors());
        let set = set.map_err(|source| ColorsError::Request {
            request: config.options.colors.clone(),
            source,
        })?;
        let Some(set) = set else { return Ok(None) };
        let policy = KernelPolicy::new(set.clone(), config.strict, coloring, judgement);
        let policy = policy.ok_or_else(|| ColorsError::Kernel("it knows no colors".to_owned()))?;
        policy
            .allowed()
            .map_err(|errno| ColorsError::Refused(policy.explain(errno, &config.roots)))?;
        Ok(Some(Self {
            request: config.options.colors.clone(),
            strict: config.strict,
            oracle: OracleKind::Kernel.name(),
            kernel: Some(policy),
            palette: None,
            swap: None,
            claim: None,
            without: (config.dry_run).then(|| "a dry run places nothing".to_owned()),
            took: begun.elapsed(),
            notes: if set.is_all() {
                Vec::new()
            } else {
                vec![
                    "a huge page spans all colors: the kernel gives none to the command".to_owned(),
                ]
            },
            set: Some(set),
        }))
    }

    /// Returns the name of the mechanism that places memory.
    pub(crate) const fn placement(&self) -> &'static str {
        match (&self.without, &self.kernel) {
            (Some(_), _) => "none",
            (None, Some(_)) => "kernel",
            (None, None) => "recolor",
        }
    }

    /// Brings the preparation, if there is one, into a watch: adapts its mechanism, and returns the keeper of its colors.
    pub(crate) fn join(
        prepared: &mut Option<Self>,
        mechanism: &mut Mechanism,
        roots: &Roots,
    ) -> Option<Keeper> {
        let prepared = prepared.as_mut()?;
        let keeper = prepared.keeper(roots);
        prepared.adapt(mechanism);
        keeper
    }

    /// Returns the keeper of memory on its colors, if memory is recolored.
    fn keeper(&mut self, roots: &Roots) -> Option<Keeper> {
        if self.without.is_some() {
            return None;
        }
        let palette = self.palette.as_ref()?;
        let set = self.set.clone()?;
        let aim = if set.is_all() {
            PlacementGoal::Spread
        } else {
            match Claim::make(&set, palette.numbering()) {
                Ok((claim, others)) => {
                    self.claim = Some(claim);
                    self.notes.extend(others);
                }
                Err(error) => {
                    let note = format!("whether others use these colors is not known: {error}");
                    self.notes.push(note);
                }
            }
            PlacementGoal::Within(set)
        };
        let cache = (palette.palette().colors(), palette.palette().ways());
        let ready = Readiness::new(cache.0, self.swap.clone(), roots);
        Some(Keeper::new(aim, cache, ready, roots))
    }

    /// Returns a handle on the swap that pages go out to, for undoing it after this was given away.
    pub(crate) fn swap(&self) -> Option<SwapOnDemand> {
        self.swap.clone()
    }

    /// Undoes the setup for recoloring. Must be called after the last recoloring.
    pub(crate) fn finish(&mut self) -> RestoreReport {
        let swap = self.swap.as_ref();
        swap.map(SwapOnDemand::finish).unwrap_or_default()
    }

    /// Returns notes for a report.
    pub(crate) fn notes(&self) -> Vec<String> {
        let swap = self.swap.as_ref().and_then(SwapOnDemand::describe);
        self.notes.iter().cloned().chain(swap).collect()
    }

    /// Returns the policy for the command, if the kernel places its memory.
    pub(crate) fn policy(&self) -> Option<&KernelPolicy> {
        self.kernel.as_ref().filter(|_| self.without.is_none())
    }

    /// Adapts how huge pages are made: memory on some of the colors cannot have any.
    fn adapt(&self, mechanism: &mut Mechanism) {
        if self.set.as_ref().is_some_and(|set| !set.is_all()) {
            if self.kernel.is_none() && self.without.is_none() {
                mechanism.switch = ThpSwitch::Never;
            }
            mechanism.collapses = false;
        }
    }
}

#[cfg(test)]
impl ColorSetup {
    /// Makes one with nothing but a policy.
    pub(crate) fn for_tests(request: ColorRequest, policy: KernelPolicy) -> Self {
        Self {
            request,
            set: Some(policy.set.clone()),
            strict: policy.strict,
            oracle: OracleKind::Kernel.name(),
            kernel: Some(policy),
            palette: None,
            swap: None,
            claim: None,
            without: None,
            took: Duration::ZERO,
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlacementOptions;

    fn asking(strict: bool, dry_run: bool, placement: ColorPlacement) -> Config {
        let options = PlacementOptions {
            colors: ColorRequest::Spread,
            placement,
            ..PlacementOptions::default()
        };
        Config {
            strict,
            dry_run,
            ..Config::from(&options)
        }
    }

    /// Returns the result for `config` where colors cannot be measured.
    fn untold(config: &Config) -> Result<Option<ColorSetup>, ColorsError> {
        ColorSetup::prepare(config, |_, _| {
            Err(ColorsError::Oracle("nobody can tell".to_owned()))
        })
    }

    #[test]
    fn where_colors_cannot_be_told_programs_run_without_unless_they_must_not() {
        use ColorPlacement::{Auto, Kernel, Recolor};
        for (strict, dry_run, placement) in [
            (false, false, Auto),
            (false, false, Recolor),
            (true, true, Auto),
            (false, true, Kernel),
        ] {
            let prepared = untold(&asking(strict, dry_run, placement))
                .unwrap()
                .unwrap();
            assert_eq!(prepared.placement(), "none");
            assert!(prepared.without.unwrap().contains("nobody can tell"));
        }
        for (strict, placement) in [(true, Auto), (true, Recolor), (false, Kernel)] {
            assert!(untold(&asking(strict, false, placement)).is_err());
        }
        assert!(untold(&Config::default()).unwrap().is_none());
    }

    #[test]
    fn the_kernel_gives_no_colors_to_what_runs_already() {
        let config = asking(false, false, ColorPlacement::Kernel);
        let refused = ColorSetup::for_running(&config).unwrap_err();
        assert!(matches!(refused, ColorsError::Kernel(_)), "{refused}");
    }
}
