//! Which policy a configuration comes to on this machine, and which tracker it goes by.

use superhue_heat::{ChooseError, Scope, choose};
use superhue_model::Share;
use superhue_policy::{
    AlwaysConfig, AlwaysPolicy, HotConfig, HotPolicy, ObserveOnlyPolicy, Policy, ResidentConfig,
    ResidentPolicy,
};

use crate::ceiling;
use crate::heat::{Sampler, Sampling};
use crate::{Config, Mechanism, Pages};

/// A policy, ready to decide.
pub(crate) struct Scheme {
    /// Which it is.
    pub(crate) pages: Pages,
    /// Why this policy and this tracker.
    pub(crate) because: String,
    pub(crate) policy: Box<dyn Policy + Send>,
    pub(crate) sampler: Option<Sampler>,
}

impl Scheme {
    /// Looks on, for as long as nothing has to be decided.
    pub(crate) fn undecided() -> Self {
        Self {
            pages: Pages::Kernel,
            because: "no process had memory that superpages could be made of".to_owned(),
            policy: Box::new(ObserveOnlyPolicy::default()),
            sampler: None,
        }
    }

    /// What `config` asks for. Where it leaves the choice, this takes `hot` if a tracker works, else
    /// `resident`.
    ///
    /// # Errors
    /// When `hot` is asked for, or a certain tracker, and cannot be had.
    pub(crate) fn of(config: &Config, mechanism: &Mechanism) -> Result<Self, ChooseError> {
        match config.pages {
            Some(Pages::Hot) => Self::hot(config, mechanism),
            Some(pages) => Ok(Self::untracked(pages, config, mechanism, "asked for")),
            None => match Self::hot(config, mechanism) {
                Err(error) if config.tracker.is_none() => Ok(Self::untracked(
                    Pages::Resident,
                    config,
                    mechanism,
                    &format!("accesses cannot be tracked: {error}"),
                )),
                scheme => scheme,
            },
        }
    }

    /// Has accesses tracked if they can be, whatever the policy: colors go by them, too.
    pub(crate) fn track(&mut self, config: &Config) {
        if self.sampler.is_none() {
            self.sampler = sampler(config).ok().map(|(sampler, _)| sampler);
        }
    }

    fn hot(config: &Config, mechanism: &Mechanism) -> Result<Self, ChooseError> {
        let (sampler, because) = sampler(config)?;
        let mut hot = HotConfig::default();
        hot.min_active = Share::BasisPoints(u32::from(config.min_active) * 100);
        hot.budget = config.budget.unwrap_or(hot.budget);
        hot.rate = config.rate.or(hot.rate);
        hot.cold_after = config.cold_after;
        hot.max_stall = config.max_stall;
        let policy: Box<dyn Policy + Send> = if mechanism.collapses {
            Box::new(HotPolicy::new(hot))
        } else {
            Box::new(ObserveOnlyPolicy::default())
        };
        Ok(Self {
            pages: Pages::Hot,
            because,
            policy,
            sampler: Some(sampler),
        })
    }

    fn untracked(pages: Pages, config: &Config, mechanism: &Mechanism, because: &str) -> Self {
        Self {
            pages,
            because: because.to_owned(),
            policy: untracked_policy(pages, config, mechanism),
            sampler: None,
        }
    }
}

/// The tracker asked for, or the best one that works, and why it is that.
fn sampler(config: &Config) -> Result<(Sampler, String), ChooseError> {
    let chosen = choose(&config.roots, config.tracker, Scope::Promotable)?;
    let sampling = Sampling {
        scope: Scope::Promotable,
        max_overhead: config.max_overhead,
        own_part: ceiling::SAMPLES,
        ..Sampling::default()
    };
    let because = format!("tracker {}: {}", chosen.tracker.kind(), chosen.why);
    let sampler = Sampler::new(config.roots.clone(), chosen.tracker, sampling);
    Ok((sampler, because))
}

fn untracked_policy(
    pages: Pages,
    config: &Config,
    mechanism: &Mechanism,
) -> Box<dyn Policy + Send> {
    match pages {
        _ if !mechanism.collapses => Box::new(ObserveOnlyPolicy::default()),
        Pages::Kernel | Pages::Never | Pages::Hot => Box::new(ObserveOnlyPolicy::default()),
        Pages::Always => {
            let mut always = AlwaysConfig {
                budget: config.budget,
                max_stall: config.max_stall,
                ..AlwaysConfig::default()
            };
            always.rate = config.rate.or(always.rate);
            Box::new(AlwaysPolicy::new(always))
        }
        Pages::Resident => {
            let mut resident = ResidentConfig::default();
            resident.min_resident = Share::BasisPoints(u32::from(config.min_resident) * 100);
            resident.settle = config.settle;
            resident.budget = config.budget.unwrap_or(resident.budget);
            resident.rate = config.rate.or(resident.rate);
            resident.max_stall = config.max_stall;
            Box::new(ResidentPolicy::new(resident))
        }
    }
}
