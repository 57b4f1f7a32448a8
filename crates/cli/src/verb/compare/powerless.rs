//! Arms in which superhue makes no huge pages, although their policy asks for some: it may not, or cannot.
//!
//! Such an arm runs all the same, since superhue steps aside rather than break a program. Without a word, `compare -- COMMAND` would then compare
//! the kernel with itself, and its "no difference" would read as a verdict on huge pages.

use std::collections::BTreeMap;

use superhue::{Config, Mechanism};
use superhue_measure::Arm;

use crate::output::note;

/// Arms by name, each with the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Powerless(BTreeMap<String, String>);

impl Powerless {
    /// Finds them by trying, once for each name: under a scan there are several arms of one name.
    pub(super) fn among(arms: &[Arm], configs: &[Config]) -> Self {
        let mut tried = BTreeMap::new();
        for (arm, config) in arms.iter().zip(configs) {
            tried
                .entry(&arm.name)
                .or_insert_with(|| Mechanism::for_command(config).obstacle);
        }
        let found = tried
            .into_iter()
            .filter_map(|(name, why)| Some((name.clone(), why?)));
        Self(found.collect())
    }

    /// Returns the reason for an arm; `None` if superhue makes huge pages in it, or is to make none.
    pub(super) fn reason(&self, arm: &str) -> Option<String> {
        self.0.get(arm).cloned()
    }

    /// Notes the reasons, before the first run.
    pub(super) fn warn(&self) {
        for (name, why) in &self.0 {
            note(&format!(
                "superhue makes no huge pages in arm `{name}`: {why}"
            ));
        }
    }

    /// Notes beside the result what it does not show.
    pub(super) fn remind(&self) {
        if let Some(text) = self.reminder() {
            note(&text);
        }
    }

    fn reminder(&self) -> Option<String> {
        let names: Vec<String> = self.0.keys().map(|name| format!("`{name}`")).collect();
        let arms = if names.len() == 1 { "arm" } else { "arms" };
        (!names.is_empty()).then(|| {
            format!(
                "superhue made no huge pages in {arms} {}, as noted before the first run: the result shows nothing about its huge pages there",
                names.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use superhue::{Pages, PlacementOptions};

    use super::*;

    fn config(pages: Pages) -> Config {
        let options = PlacementOptions {
            pages: Some(pages),
            ..PlacementOptions::default()
        };
        Config::from(&options)
    }

    #[test]
    fn arms_of_one_name_are_named_once_and_others_never() {
        let arms = ["kernel", "never"].map(|name| Arm::new(name, String::new()));
        let configs = [config(Pages::Kernel), config(Pages::Never)];
        let none = Powerless::among(&arms, &configs);
        assert_eq!((none.0.len(), none.reminder()), (0, None));
        let found = |names: &[&str]| {
            let found = names
                .iter()
                .map(|name| ((*name).to_owned(), "why".to_owned()));
            Powerless(found.collect()).reminder().unwrap()
        };
        assert!(
            found(&["auto"]).starts_with("superhue made no huge pages in arm `auto`, as noted")
        );
        assert!(found(&["hot", "auto"]).contains(" in arms `auto`, `hot`, as noted"));
    }
}
