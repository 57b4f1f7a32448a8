//! Which policy a configuration comes to on this machine, and which tracker it goes by.

use superhue_heat::{ChooseError, Scope, choose};
use superhue_model::{ColorRequest, Share};
use superhue_policy::{Active, Pattern, Policy, Quota, Resident, Scheme};

use crate::ceiling;
use crate::heat::{Sampler, Sampling};
use crate::{Config, Mechanism, Pages};

/// A policy, ready to decide.
pub(crate) struct Setup {
    /// Which it is.
    pub(crate) pages: Pages,
    /// Why this policy and this tracker.
    pub(crate) because: String,
    pub(crate) policy: Box<dyn Policy + Send>,
    pub(crate) sampler: Option<Sampler>,
}

impl Setup {
    /// Looks on, for as long as nothing has to be decided.
    pub(crate) fn undecided() -> Self {
        Self {
            pages: Pages::Kernel,
            because: "no process had memory that huge pages could be made of".to_owned(),
            policy: Scheme::default().policy(),
            sampler: None,
        }
    }

    /// What `config` asks for; `auto` where it leaves the choice.
    ///
    /// # Errors
    /// When `hot` is asked for, or a certain tracker, and cannot be had.
    pub(crate) fn of(config: &Config, mechanism: &Mechanism) -> Result<Self, ChooseError> {
        match config.pages {
            Some(Pages::Hot) => Self::tracked(Pages::Hot, config, mechanism),
            None | Some(Pages::Auto) => match Self::tracked(Pages::Auto, config, mechanism) {
                Err(error) if config.tracker.is_none() => Ok(Self::untracked(
                    Pages::Auto,
                    config,
                    mechanism,
                    &format!(
                        "accesses cannot be tracked, so only what is nearly full becomes huge: {error}"
                    ),
                )),
                setup => setup,
            },
            Some(pages) => Ok(Self::untracked(pages, config, mechanism, "asked for")),
        }
    }

    /// What `config` asks for by name; `None` where it leaves the choice, which can wait until there is something to place.
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

    /// Has accesses tracked if they can be, whatever the policy: colors go by them, too.
    pub(crate) fn track(&mut self, config: &Config) {
        if self.sampler.is_none() {
            self.sampler = sampler(config).ok().map(|(sampler, _)| sampler);
        }
    }

    fn tracked(pages: Pages, config: &Config, mechanism: &Mechanism) -> Result<Self, ChooseError> {
        let (sampler, because) = sampler(config)?;
        Ok(Self {
            pages,
            because,
            policy: scheme(pages, true, config, mechanism).policy(),
            sampler: Some(sampler),
        })
    }

    fn untracked(pages: Pages, config: &Config, mechanism: &Mechanism, because: &str) -> Self {
        Self {
            pages,
            because: because.to_owned(),
            policy: scheme(pages, false, config, mechanism).policy(),
            sampler: None,
        }
    }
}

/// The tracker asked for, or the best one that works, and why it is that.
fn sampler(config: &Config) -> Result<(Sampler, String), ChooseError> {
    // Pages of shared objects are recolored wherever they are mapped.
    let scope = match config.colors {
        ColorRequest::Off => Scope::Promotable,
        _ => Scope::SwapBacked,
    };
    let chosen = choose(&config.roots, config.tracker, scope)?;
    let sampling = Sampling {
        scope,
        max_overhead: config.max_overhead,
        own_part: ceiling::SAMPLES,
        ..Sampling::default()
    };
    let because = format!("tracker {}: {}", chosen.tracker.kind(), chosen.why);
    let sampler = Sampler::new(config.roots.clone(), chosen.tracker, sampling);
    Ok((sampler, because))
}

/// What `pages` and the rest of `config` come to, with evidence of accesses or without.
fn scheme(pages: Pages, is_tracked: bool, config: &Config, mechanism: &Mechanism) -> Scheme {
    let percent = |of: u8| Share::BasisPoints(u32::from(of) * 100);
    let is_auto = pages == Pages::Auto;
    let mut scheme = match pages {
        _ if !mechanism.collapses => Scheme::default(),
        Pages::Kernel | Pages::Never => Scheme::default(),
        Pages::Always => Scheme::always(),
        Pages::Auto | Pages::Hot if is_tracked => Scheme {
            pattern: Pattern::Active(Active {
                min_active: percent(config.min_active),
                cold_after: config.cold_after,
                full_at_once: is_auto,
                ..Active::default()
            }),
            ..Scheme::hot()
        },
        Pages::Auto | Pages::Hot | Pages::Resident => Scheme {
            pattern: Pattern::Resident(Resident {
                min_resident: percent(config.min_resident),
                settle: config.settle,
            }),
            ..Scheme::resident()
        },
    };
    scheme.quota = Quota {
        budget: config.budget.or(scheme.quota.budget),
        rate: config.rate.or(scheme.quota.rate),
        max_stall: config.max_stall,
        spares_filling: is_auto,
    };
    scheme
}
