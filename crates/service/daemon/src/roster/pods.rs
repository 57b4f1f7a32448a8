//! Pods of the roster: their names, which the kubelet knows, and rules that ask for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue::cpu_time;

use super::group::ASK_AGAIN;
use super::{Roster, Source};
use crate::kubelet::{Kubelet, KubeletSettings};
use crate::pods::{Place, Pods, place};

impl Roster {
    /// Returns the kubelet; its descriptor becomes readable when pods have changed.
    #[must_use]
    pub fn kubelet(&self) -> Option<&Kubelet> {
        self.kubelet.as_ref()
    }

    /// Returns the known pods.
    #[must_use]
    pub fn pods(&self) -> &Pods {
        &self.pods
    }

    /// Sets the kubelet to ask for pods from now on. To be called before [`Self::follow`].
    pub fn ask_kubelet(&mut self, settings: Option<&KubeletSettings>) {
        if self.kubelet.as_ref().map(Kubelet::settings) == settings {
            return;
        }
        self.pods = Arc::default();
        self.kubelet = settings.and_then(|settings| {
            let started = Kubelet::start(settings.clone());
            (started.inspect_err(|error| tracing::error!(%error, "the kubelet cannot be asked")))
                .ok()
        });
    }

    /// Takes changed pods from the kubelet, and matches their processes again.
    pub fn take_pods(&mut self, at: Duration) {
        let Some(pods) = self.kubelet.as_ref().and_then(Kubelet::take) else {
            return;
        };
        let begun = cpu_time();
        let before = std::mem::replace(&mut self.pods, pods);
        let differs = |uid: &&String| before.get(*uid) != self.pods.get(*uid);
        let changed: Vec<String> = self.pod_groups.keys().filter(differs).cloned().collect();
        let rules = self.rules.clone();
        for uid in changed {
            let paths = self.pod_groups.get(&uid).cloned().unwrap_or_default();
            let mut earlier = BTreeMap::new();
            for path in &paths {
                if let Some(group) = self.groups.remove(path) {
                    self.changed |= !group.members.is_empty();
                    earlier.insert(path.clone(), group);
                    if let Source::Tree(groups) = &mut self.source {
                        groups.unwant(path);
                    }
                }
            }
            self.take_in(&paths);
            if matches!(self.source, Source::Processes { .. }) {
                for path in &paths {
                    self.make_group(path);
                }
            }
            self.carry_over(earlier, &rules);
            for path in &paths {
                self.read_group(path, at, true);
            }
        }
        if matches!(self.source, Source::Processes { .. }) {
            self.next_read = at;
        }
        self.spent += cpu_time().saturating_sub(begun);
    }

    /// Waits until the kubelet has answered once, if there is one, and takes its pods.
    pub fn wait_for_pods(&mut self, at_most: Duration) {
        let begun = Instant::now();
        while let Some(kubelet) = &self.kubelet
            && kubelet.account().requests == 0
            && begun.elapsed() < at_most
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.take_pods(Duration::ZERO);
    }

    /// Notes a cgroup of a pod; asks the kubelet if it has not named it.
    pub(super) fn note_pod(&mut self, path: &str) {
        let (Some(kubelet), Some(place)) = (&self.kubelet, place(path)) else {
            return;
        };
        if is_named(&self.pods, &place) {
            self.unnamed.remove(path);
        } else if !self.unnamed.contains_key(path) {
            self.unnamed.insert(path.to_owned(), ASK_AGAIN);
            kubelet.ask();
        }
        let paths = self.pod_groups.entry(place.uid).or_default();
        paths.insert(path.to_owned());
    }

    /// Asks the kubelet again for pods and containers that it has not named: it knows a container about a second after its start. It never names the
    /// cgroups that the runtime keeps beside containers, so the number of attempts is limited.
    pub(super) fn ask_for_unnamed(&mut self) {
        let pods = &self.pods;
        let is_unnamed = |path: &str| place(path).is_some_and(|place| !is_named(pods, &place));
        let mut asks = false;
        for (_, left) in
            (self.unnamed.iter_mut()).filter(|(path, left)| **left > 0 && is_unnamed(path))
        {
            *left -= 1;
            asks = true;
        }
        if let Some(kubelet) = self.kubelet.as_ref().filter(|_| asks) {
            kubelet.ask();
        }
    }

    pub(super) fn forget_pod(&mut self, path: &str) {
        self.unnamed.remove(path);
        let Some(place) = place(path) else { return };
        if let Some(paths) = self.pod_groups.get_mut(&place.uid) {
            paths.remove(path);
            if paths.is_empty() {
                self.pod_groups.remove(&place.uid);
            }
        }
    }
}

/// Returns true if the kubelet has named the pod, and the container if there is one.
fn is_named(pods: &Pods, place: &Place<'_>) -> bool {
    let pod = pods.get(&place.uid);
    pod.is_some_and(|pod| (place.container).is_none_or(|id| pod.containers.contains_key(id)))
}
