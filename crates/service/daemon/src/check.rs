//! `superhue daemon --check`: errors in the configuration, and settings that may be mistakes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use superhue_procfs::Roots;

use crate::config::{Problem, Settings};
use crate::load::load;
use crate::roster::Roster;
use crate::rules::Rule;
use crate::users::AllowEntry;

/// Longest wait for the kubelet.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(6);

/// Longest time for reading processes.
const READING: Duration = Duration::from_secs(5);

/// Warnings of one kind that are listed one by one.
const MOST_WARNINGS: usize = 20;

/// Result of a check.
#[derive(Debug)]
pub struct CheckReport {
    /// The settings in the files.
    pub settings: Settings,
    /// Processes that belong to each rule now, by its name.
    pub processes: BTreeMap<String, u64>,
    /// Settings that are allowed and may be mistakes.
    pub warnings: Vec<String>,
}

/// Reads the configuration in `folder` and matches it with the running processes; changes nothing.
///
/// # Errors
/// The problems of the configuration.
pub fn check(folder: &Path, roots: &Roots) -> Result<CheckReport, Vec<Problem>> {
    let settings = load(folder)?;
    let mut roster = Roster::new(roots, 1.0);
    roster.ask_kubelet(settings.kubelet.as_ref());
    roster.follow(settings.rules.clone().into(), 1.0);
    roster.step(Duration::ZERO);
    roster.settle(Duration::ZERO, READING);
    roster.wait_for_pods(KUBELET_TIMEOUT);
    roster.settle(Duration::ZERO, READING);
    let found = roster.changes().unwrap_or_default();
    let counted = |(index, rule): (usize, &Rule)| {
        let members = found
            .get(&index)
            .map(|tenants| tenants.values().map(BTreeMap::len));
        let count = members.map_or(0, |members| members.sum::<usize>() as u64);
        (rule.name.to_string(), count)
    };
    let processes = settings.rules.iter().enumerate().map(counted).collect();
    let mut warnings = warnings(&settings, &processes);
    let account = roster.account(Duration::ZERO);
    for held in account.left_alone {
        let pid = held.process.unwrap_or_default();
        warnings.push(format!(
            "process {pid} is not counted: it holds up each reader (it executes a program, or has its memory locked, and does not go on)"
        ));
    }
    if account.behind > 0 {
        warnings.push(format!(
            "{} processes are not counted: there was no time to read them",
            account.behind
        ));
    }
    if let Some(because) = account.pods.and_then(|pods| pods.error) {
        warnings.push(format!(
            "the kubelet has not said which pods there are: {because}"
        ));
    }
    Ok(CheckReport {
        settings,
        processes,
        warnings,
    })
}

fn warnings(settings: &Settings, processes: &BTreeMap<String, u64>) -> Vec<String> {
    let mut kinds: [Vec<String>; 4] = Default::default();
    let allowed = settings.users.iter().flat_map(|users| &users.allow);
    kinds[3] = allowed.filter_map(AllowEntry::nobody).collect();
    let mut catches_all: Option<&Rule> = None;
    for rule in &settings.rules {
        let at = format!("{}: rule `{}`", rule.place, rule.name);
        if let Some(all) = catches_all {
            let text = format!(
                "{at} is never reached: `{}` before it is for every process",
                all.name
            );
            kinds[0].push(text);
            continue;
        }
        if rule.conditions.is_empty() {
            catches_all = Some(rule);
        }
        if let Some(user) = (rule.conditions.user.as_ref()).filter(|user| user.number.is_none()) {
            kinds[1].push(format!(
                "{at}: there is no user `{}` (see getent passwd)",
                user.name
            ));
        } else if processes.get(&*rule.name) == Some(&0) {
            kinds[2].push(format!("{at} matches nothing that runs now"));
        }
    }
    let told = kinds.into_iter().flat_map(|mut kind| {
        let more = kind.len().saturating_sub(MOST_WARNINGS);
        kind.truncate(MOST_WARNINGS);
        kind.extend((more > 0).then(|| format!("and {more} more rules likewise")));
        kind
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rules_that_do_nothing_are_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let text = "
[users]
allow = [\"no-such-user\", \"@no-such-group\", \"12345\"]
[[rule]]
name = \"nobody\"
user = \"no-such-user\"
[[rule]]
name = \"nothing\"
executable = \"/no/such/program\"
[[rule]]
name = \"all\"
any = true
[[rule]]
name = \"late\"
any = true
pages = \"off\"
";
        fs::write(folder.path().join("superhue.toml"), text).unwrap();
        let _other = superhue_testing::ChildGuard::sleeper();
        let checked = check(folder.path(), &Roots::default()).unwrap();
        assert!(checked.processes["all"] > 0);
        let [late, nobody, nothing, no_user, no_group] = &checked.warnings[..] else {
            panic!("{:?}", checked.warnings)
        };
        assert!(
            no_user.contains("[users] allows `no-such-user`, and there is no such user"),
            "{no_user}"
        );
        assert!(no_group.contains("no such group"), "{no_group}");
        assert!(
            late.contains("superhue.toml:13: rule `late` is never reached"),
            "{late}"
        );
        assert!(
            nobody.contains("rule `nobody`: there is no user `no-such-user`"),
            "{nobody}"
        );
        assert!(
            nothing.contains("rule `nothing` matches nothing that runs now"),
            "{nothing}"
        );
        let many: String = (0..50)
            .map(|n| format!("[[rule]]\nname = \"r{n}\"\nunit = \"no-{n}\"\n"))
            .collect();
        fs::write(folder.path().join("superhue.toml"), many).unwrap();
        let checked = check(folder.path(), &Roots::default()).unwrap();
        assert_eq!(checked.warnings.len(), MOST_WARNINGS + 1);
        assert_eq!(
            checked.warnings[MOST_WARNINGS],
            "and 30 more rules likewise"
        );
    }
}
