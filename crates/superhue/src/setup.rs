//! Chooses the policy and the tracker for a configuration on this machine.

use superhue_heat::{ChooseError, PtwalkTracker, Scope, choose};
use superhue_model::{ColorRequest, Share};
use superhue_policy::{Active, Ledger, Pattern, Policy, Quota, Resident, Scheme, StallBound};

use crate::ceiling;
use crate::heat::{Sampler, Sampling};
use crate::{Config, Mechanism, Pages};

/// A policy, ready to decide.
pub(crate) struct Setup {
    /// The chosen policy.
    pub(crate) pages: Pages,
    /// Reason for this policy and this tracker.
    pub(crate) because: String,
    pub(crate) policy: Box<dyn Policy + Send>,
    pub(crate) sampler: Option<Sampler>,
    /// True if all watched memory is sampled at once, since the configuration names a tracker for `auto`; otherwise the policy says when.
    pub(crate) samples_all: bool,
    /// Configuration of the tracker, until the policy first wants evidence of accesses.
    postponed: Option<Box<(Config, Mechanism)>>,
}

impl Setup {
    /// Returns a policy that only observes, while there is nothing to decide.
    pub(crate) fn undecided(config: &Config) -> Self {
        Self {
            pages: Pages::Kernel,
            because: "no process had memory that huge pages could be made of".to_owned(),
            policy: Scheme::default().policy_after(account_before(config)),
            sampler: None,
            samples_all: false,
            postponed: None,
        }
    }

    /// Returns the policy that `config` names, or `auto` where it names none.
    ///
    /// # Errors
    /// `config` names `hot` or a tracker that does not work here.
    pub(crate) fn of(config: &Config, mechanism: &Mechanism) -> Result<Self, ChooseError> {
        match config.options.pages {
            Some(Pages::Hot) => Self::tracked(Pages::Hot, config, mechanism),
            None | Some(Pages::Auto) if config.options.tracker.is_some() => {
                Self::tracked(Pages::Auto, config, mechanism)
            }
            None | Some(Pages::Auto) if !PtwalkTracker::may_work(&config.roots) => {
                // Nothing costly is tried then, and what does not work is known from the start.
                let mut setup = Self::postponed(config, mechanism);
                setup.start_tracking();
                Ok(setup)
            }
            None | Some(Pages::Auto) => Ok(Self::postponed(config, mechanism)),
            Some(pages) => Ok(Self {
                pages,
                because: "asked for".to_owned(),
                policy: policy_of(pages, false, config, mechanism),
                sampler: None,
                samples_all: false,
                postponed: None,
            }),
        }
    }

    /// Bounds the cost of tracking from now on.
    pub(crate) fn limit(&mut self, max_overhead: f64) {
        if let Some(sampler) = &mut self.sampler {
            sampler.limit(max_overhead);
        }
        if let Some(postponed) = &mut self.postponed {
            postponed.0.options.max_overhead = max_overhead;
        }
    }

    /// Limits the memory that promotion adds from now on.
    pub(crate) fn allow(&mut self, budget: Share) {
        self.policy.allow(Some(budget));
        if let Some(postponed) = &mut self.postponed {
            postponed.0.options.budget = Some(budget);
        }
    }

    /// Returns `auto` before anything calls for evidence of accesses.
    fn postponed(config: &Config, mechanism: &Mechanism) -> Self {
        Self {
            pages: Pages::Auto,
            because: "no accesses are tracked: nothing depends on them so far".to_owned(),
            policy: policy_of(Pages::Auto, true, config, mechanism),
            sampler: None,
            samples_all: false,
            postponed: Some(Box::new((config.clone(), mechanism.clone()))),
        }
    }

    /// Returns true if tracking was postponed until something calls for it.
    pub(crate) const fn is_postponed(&self) -> bool {
        self.postponed.is_some()
    }

    /// Starts the postponed tracking. Where accesses cannot be tracked, the policy from now on decides without them.
    pub(crate) fn start_tracking(&mut self) {
        let Some(postponed) = self.postponed.take() else {
            return;
        };
        let (config, mechanism) = *postponed;
        match sampler(&config) {
            Ok((sampler, because)) => {
                tracing::debug!(pages = %self.pages, because, "tracking started");
                self.because = because;
                self.sampler = Some(sampler);
            }
            Err(error) => {
                tracing::debug!(pages = %self.pages, %error, "tracking not possible");
                self.because = format!(
                    "accesses cannot be tracked, so only what is nearly full becomes huge: {error}"
                );
                // Its processes run already: the bound on stalls holds from the start.
                let config = config.for_running();
                let scheme = scheme(self.pages, false, &config, &mechanism);
                self.policy = scheme.policy_after(self.policy.ledger().clone());
            }
        }
    }

    /// Returns the policy that `config` names; `None` where it names none: that choice can wait until there is memory to place.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn if_asked(
        config: &Config,
        mechanism: &Mechanism,
    ) -> Result<Option<Self>, ChooseError> {
        (config.asks_for_something())
            .then(|| Self::of(config, mechanism))
            .transpose()
    }

    /// Starts tracking accesses if that works here, under any policy: recoloring needs them, too.
    pub(crate) fn track(&mut self, config: &Config) {
        self.start_tracking();
        if self.sampler.is_none() {
            self.sampler = sampler(config).ok().map(|(sampler, _)| sampler);
        }
    }

    fn tracked(pages: Pages, config: &Config, mechanism: &Mechanism) -> Result<Self, ChooseError> {
        let (sampler, because) = sampler(config)?;
        Ok(Self {
            pages,
            because,
            policy: policy_of(pages, true, config, mechanism),
            sampler: Some(sampler),
            samples_all: pages == Pages::Auto,
            postponed: None,
        })
    }
}

/// Returns the account with which a policy begins.
fn account_before(config: &Config) -> Ledger {
    Ledger {
        charged: config.carried,
        ..Ledger::default()
    }
}

/// Returns a policy that begins with that account; `tracked` as in [`scheme`].
fn policy_of(
    pages: Pages,
    tracked: bool,
    config: &Config,
    mechanism: &Mechanism,
) -> Box<dyn Policy + Send> {
    scheme(pages, tracked, config, mechanism).policy_after(account_before(config))
}

/// Returns the tracker that `config` names, or the best one that works, and the reason for it.
fn sampler(config: &Config) -> Result<(Sampler, String), ChooseError> {
    // Pages of shared objects are recolored in all mappings.
    let scope = match config.options.colors {
        ColorRequest::Off => Scope::Promotable,
        _ => Scope::SwapBacked,
    };
    let chosen = choose(&config.roots, config.options.tracker, scope)?;
    let sampling = Sampling {
        scope,
        max_overhead: config.options.max_overhead,
        own_part: ceiling::SAMPLES,
        by_cpu_time: true,
        max_lock: config.lock_bound(),
        max_real_time: (config.stall_bound()).map_or_else(Default::default, |bound| bound.allowed),
        ..Sampling::default()
    };
    let because = format!("tracker {}: {}", chosen.tracker.kind(), chosen.why);
    let sampler = Sampler::new(config.roots.clone(), chosen.tracker, sampling);
    Ok((sampler, because))
}

/// Returns the scheme for `pages` and the rest of `config`, with evidence of accesses or without.
fn scheme(pages: Pages, is_tracked: bool, config: &Config, mechanism: &Mechanism) -> Scheme {
    let percent = |of: u8| Share::BasisPoints(u32::from(of) * 100);
    let is_auto = pages == Pages::Auto;
    let mut scheme = match pages {
        _ if !mechanism.collapses => Scheme::default(),
        Pages::Kernel | Pages::Never => Scheme::default(),
        Pages::Always => Scheme::always(),
        Pages::Auto | Pages::Hot if is_tracked => Scheme {
            pattern: Pattern::Active(Active {
                min_active: percent(config.options.min_active),
                cold_after: config.options.cold_after,
                full_at_once: is_auto,
                ..Active::default()
            }),
            ..Scheme::hot()
        },
        Pages::Auto | Pages::Hot | Pages::Resident => Scheme {
            pattern: Pattern::Resident(Resident {
                min_resident: percent(config.options.min_resident),
                settle: config.options.settle,
            }),
            ..Scheme::resident()
        },
    };
    if is_auto {
        scheme.quota = Quota::auto();
    }
    scheme.quota = Quota {
        budget: config.options.budget.or(scheme.quota.budget),
        rate: config.options.rate.or(scheme.quota.rate),
        max_stall: config.stall_bound().map(StallBound::with_reserve),
        ..scheme.quota
    };
    scheme
}
