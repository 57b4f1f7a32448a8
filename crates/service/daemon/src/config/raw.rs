//! Tables of a configuration file, as TOML has them.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawFile {
    pub(super) daemon: Option<Spanned<RawDaemon>>,
    pub(super) kubernetes: Option<Spanned<RawKubernetes>>,
    pub(super) users: Option<Spanned<RawUsers>>,
    #[serde(default)]
    pub(super) rule: Vec<Spanned<RawRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawDaemon {
    pub(super) max_overhead: Option<Spanned<String>>,
    pub(super) metrics: Option<Spanned<String>>,
    pub(super) metrics_public: Option<Spanned<bool>>,
    pub(super) metrics_services: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawKubernetes {
    pub(super) kubelet: Option<Spanned<String>>,
    pub(super) token_file: Option<Spanned<String>>,
    pub(super) ca_file: Option<Spanned<String>>,
    pub(super) skip_verify: Option<Spanned<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawUsers {
    pub(super) allow: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) budget: Option<Spanned<String>>,
    pub(super) rate: Option<Spanned<String>>,
    pub(super) clients: Option<Spanned<i64>>,
    pub(super) clients_per_user: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawRule {
    pub(super) name: Option<Spanned<String>>,
    pub(super) unit: Option<Spanned<String>>,
    pub(super) cgroup: Option<Spanned<String>>,
    pub(super) namespace: Option<Spanned<String>>,
    pub(super) pod: Option<Spanned<String>>,
    pub(super) container: Option<Spanned<String>>,
    pub(super) pod_label: Option<Spanned<String>>,
    pub(super) pod_annotation: Option<Spanned<String>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) executable: Option<Spanned<String>>,
    pub(super) any: Option<Spanned<bool>>,
    pub(super) pages: Option<Spanned<String>>,
    pub(super) budget: Option<Spanned<String>>,
    pub(super) max_overhead: Option<Spanned<String>>,
    pub(super) max_stall: Option<Spanned<String>>,
    pub(super) rate: Option<Spanned<String>>,
    pub(super) min_resident: Option<Spanned<String>>,
    pub(super) settle: Option<Spanned<String>>,
    pub(super) min_active: Option<Spanned<String>>,
    pub(super) cold_after: Option<Spanned<String>>,
    pub(super) tracker: Option<Spanned<String>>,
    pub(super) colors: Option<Spanned<String>>,
    pub(super) placement: Option<Spanned<String>>,
    pub(super) swap: Option<Spanned<bool>>,
}

impl RawRule {
    /// Returns the options that are given, beside `pages`: key and place.
    pub(super) fn options(&self) -> impl Iterator<Item = (&'static str, Range<usize>)> {
        let texts = [
            ("budget", &self.budget),
            ("max-overhead", &self.max_overhead),
            ("max-stall", &self.max_stall),
            ("rate", &self.rate),
            ("min-resident", &self.min_resident),
            ("settle", &self.settle),
            ("min-active", &self.min_active),
            ("cold-after", &self.cold_after),
            ("tracker", &self.tracker),
            ("colors", &self.colors),
            ("placement", &self.placement),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(key, text)| Some((key, text.as_ref()?.span())));
        texts.chain(self.swap.as_ref().map(|swap| ("swap", swap.span())))
    }
}

impl RawRule {
    pub(super) fn has_no_condition(&self) -> bool {
        let given = [&self.unit, &self.cgroup, &self.user, &self.executable];
        given
            .iter()
            .chain(&self.of_pod())
            .all(|given| given.is_none())
    }

    pub(super) fn of_pod(&self) -> [&Option<Spanned<String>>; 5] {
        [
            &self.namespace,
            &self.pod,
            &self.container,
            &self.pod_label,
            &self.pod_annotation,
        ]
    }
}
