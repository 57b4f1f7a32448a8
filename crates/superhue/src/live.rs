//! A watch that keeps running while its members, its ceiling and its pause switch change, and reports its state at any time.
//!
//! ```text
//!   owner --- members --> Controls --> the watch's own thread: look, decide, act, learn
//!         <-- account ---         <--- once a second, if the ceiling pays for it
//! ```
//!
//! The daemon has one for each rule. New members neither end the watch nor discard the heat of processes that stay.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use superhue_act::Actuator;
use superhue_model::Share;
use superhue_procfs::process::numbers_are_ours;

pub use crate::account::{
    ActionCounts, DURATION_BOUNDS_SECONDS, DurationBucket, LiveColors, LiveMemory, LiveStalls,
    Members, OwnCost, PROCESSES_LISTED, ProcessAccount, SERVICES_LISTED, ServiceAccount,
    ServiceActions, WatchAccount,
};

use crate::attach::{AttachError, running_mechanism};
use crate::colors::ColorSetup;
use crate::controls::{Controls, MemberFeed};
use crate::cpu::Work;
use crate::family::Family;
use crate::session::new_watch;
use crate::setup::Setup;
use crate::watch::AccountPublisher;
use crate::{Config, Mechanism};

/// A watch over the processes that its owner sets. Dropping it ends it; memory stays as it is then.
#[derive(Debug)]
pub struct LiveWatch {
    controls: Controls,
    thread: Option<JoinHandle<()>>,
}

impl LiveWatch {
    /// Starts a watch without members, in a thread called `name`.
    ///
    /// Slow work (measuring colors, making a tracker) runs in that thread. If `config` cannot work on this machine,
    /// [`WatchAccount::trouble`] gives the reason, and the watch does nothing.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(config: &Config, name: &str) -> std::io::Result<Self> {
        Self::start_with(config, name, |actuator| actuator)
    }

    /// Does the same, but acts on processes through an actuator that `make` builds from the watch's own.
    pub(crate) fn start_with(
        config: &Config,
        name: &str,
        make: impl FnOnce(Box<dyn Actuator>) -> Box<dyn Actuator> + Send + 'static,
    ) -> std::io::Result<Self> {
        let config = config.for_running();
        let controls = Controls::new(config.options.max_overhead);
        let theirs = controls.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                if let Err(error) = watch(&config, &theirs, make) {
                    tracing::warn!(%error, "this rule's processes are left alone");
                    theirs.publish(WatchAccount {
                        trouble: Some(error.to_string()),
                        charged_bytes: config.carried,
                        ..WatchAccount::default()
                    });
                }
            })?;
        Ok(Self {
            controls,
            thread: Some(thread),
        })
    }

    /// Sets the members of the watch.
    pub fn feed(&self, members: Members) {
        self.controls.feed(members);
    }

    /// Pauses the watch, which then only observes, or lets it act again.
    pub fn pause(&self, paused: bool) {
        self.controls.pause(paused);
    }

    /// Makes the watch stand still, with its clock, or continue. While it stands still it neither looks at processes, nor tracks accesses, nor acts;
    /// the step in progress is completed first.
    pub fn hold(&self, held: bool) {
        self.controls.hold(held);
    }

    /// Returns true while the watch stands still, or after it has ended: it acts on no process then.
    pub(crate) fn stands_still(&self) -> bool {
        self.controls.stands_still() || self.has_ended()
    }

    /// Sets the upper bound on the cost of watching from now on, as a share of one CPU's time (see
    /// [`PlacementOptions::max_overhead`](crate::PlacementOptions::max_overhead)).
    pub fn limit(&self, max_overhead: f64) {
        self.controls.limit(max_overhead);
    }

    /// Sets the upper bound on memory that huge pages add from now on, in place of the configured one.
    pub fn allow(&self, budget: Share) {
        self.controls.allow(budget);
    }

    /// Counts CPU time that the calling thread has taken for the watch, such as for passing its accounts on, as time of watching.
    pub fn spend(&self, time: Duration) {
        self.controls.spend(time);
    }

    /// Makes the watch call `told` after each new account, in the watch's own thread: `told` must not wait.
    pub fn tell(&self, told: impl Fn() + Send + Sync + 'static) {
        self.controls.tell(Arc::new(told));
    }

    /// Returns the last account: at most a second or two old while the watch has members, and ten seconds while the watch has taken
    /// [`PlacementOptions::max_overhead`](crate::PlacementOptions::max_overhead).
    #[must_use]
    pub fn account(&self) -> Arc<WatchAccount> {
        self.controls.account()
    }

    /// Returns true if the watch's thread has ended, which happens only after trouble.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Requests the end of the watch and does not wait for it. Dropping the watch waits.
    pub fn stop(&self) {
        self.controls.stop().now();
    }
}

impl Drop for LiveWatch {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Watches until `controls` stops it.
fn watch(
    config: &Config,
    controls: &Controls,
    make: impl FnOnce(Box<dyn Actuator>) -> Box<dyn Actuator>,
) -> Result<(), AttachError> {
    numbers_are_ours(&config.roots)?;
    let preparing = Work::begin();
    let mut mechanism: Mechanism = running_mechanism(config)?;
    let (_, prepared) = preparing.end();
    let mut colors = ColorSetup::for_running(config)?;
    let keeper = ColorSetup::join(&mut colors, &mut mechanism, &config.roots);
    // Without a named policy, the watch chooses one once there is memory that is worth it.
    let choosing = Work::begin();
    let setup = Setup::if_asked(config, &mechanism)?;
    let (_, chosen) = choosing.end();
    let family = Family::fed(MemberFeed::by(controls));
    let swap = colors.as_ref().and_then(ColorSetup::swap);
    let live = AccountPublisher::new(controls.clone(), &mechanism, colors);
    let watch = new_watch(config, &mechanism, family, setup);
    let watch = watch.with_actuator(make);
    let watch = watch
        .with_keeper(keeper)
        .with_live(live)
        .with_cost(prepared + chosen);
    watch.run(&controls.stop(), false);
    for left in swap.map(|swap| swap.finish().left).unwrap_or_default() {
        let path = left.path.display();
        tracing::warn!(%path, because = left.reason, "left as it is: superhue restore puts it back");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use superhue_heat::{Scope, TrackerKind, choose};
    use superhue_model::ProcessId;
    use superhue_procfs::Roots;
    use superhue_procfs::process::identify;

    use super::*;
    use crate::PlacementOptions;

    /// Waits for an account for which `what` holds. The deadline leaves room for a slow machine.
    fn wait_for(watch: &LiveWatch, what: impl Fn(&WatchAccount) -> bool) -> Arc<WatchAccount> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let account = watch.account();
            if what(&account) {
                return account;
            }
            assert!(Instant::now() < deadline, "{account:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn fed(processes: &[(ProcessId, &str)]) -> Members {
        let fed = processes.iter().map(|&(id, label)| (id, label.into()));
        fed.collect()
    }

    #[test]
    fn a_watch_goes_on_while_its_members_change() {
        let options = PlacementOptions {
            pages: Some(crate::Pages::Kernel),
            ..PlacementOptions::default()
        };
        let config = Config::from(&options);
        let watch = LiveWatch::start(&config, "test").unwrap();
        let child = |_| {
            let mut command = Command::new("sleep");
            superhue_testing::ChildGuard::spawn(command.arg("1000").stdout(Stdio::null()))
        };
        let children = [0, 1].map(child);
        let ids = children.each_ref().map(|child| {
            let roots = Roots::default();
            identify(&roots, child.pid()).unwrap()
        });
        watch.feed(fed(&[(ids[0], "one")]));
        let account = wait_for(&watch, |account| account.memory.processes == 1);
        assert_eq!(account.processes[0].pid, ids[0].pid);
        assert!(account.memory.resident_bytes.0 > 0);
        assert_eq!(account.services.keys().collect::<Vec<_>>(), ["one"]);
        assert!(!account.paused && account.trouble.is_none());

        watch.feed(fed(&[(ids[0], "one"), (ids[1], "two")]));
        let account = wait_for(&watch, |account| account.memory.processes == 2);
        assert_eq!(account.processes_seen, 2);
        assert_eq!(account.services["two"].memory.processes, 1);

        watch.pause(true);
        watch.limit(0.002);
        watch.feed(fed(&[(ids[1], "two")]));
        let account = wait_for(&watch, |it| it.paused && it.memory.processes == 1);
        assert!((account.own.max_overhead - 0.002).abs() < 1e-12);
        assert_eq!(account.processes[0].service, "two");
        watch.feed(Members::new());
        wait_for(&watch, |account| account.memory.processes == 0);
        assert!(!watch.has_ended(), "it waits for others");
    }

    #[test]
    fn a_tracker_that_cannot_be_had_is_trouble() {
        let tracker = Some(TrackerKind::Idle);
        let options = PlacementOptions {
            tracker,
            ..PlacementOptions::default()
        };
        if choose(&Roots::default(), tracker, Scope::Promotable).is_ok() {
            return superhue_testing::skip(
                "no-page-idle",
                "this kernel has page_idle, and lets it be used",
            );
        }
        let watch = LiveWatch::start(&Config::from(&options), "test").unwrap();
        let account = wait_for(&watch, |account| account.trouble.is_some());
        let trouble = account.trouble.as_ref().unwrap();
        assert!(trouble.contains("idle"), "{trouble}");
    }

    #[test]
    fn what_cannot_be_had_is_said_and_not_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        // A `/proc` of another PID namespace.
        std::fs::create_dir(&roots.proc).unwrap();
        std::os::unix::fs::symlink("0", roots.proc.join("self")).unwrap();
        let config = Config {
            roots,
            ..Config::default()
        };
        let watch = LiveWatch::start(&config, "test").unwrap();
        let account = wait_for(&watch, |account| account.trouble.is_some());
        assert!(account.processes.is_empty());
    }
}
