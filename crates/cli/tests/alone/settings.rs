//! Settings of the machine: superhue refuses wrong ones before it starts anything, and those of an arm hold while it runs.

use std::fs;
use std::path::Path;

use serde_json::Value;
use superhue_testing::{alone, skip};

use crate::support::{
    User, folder, is_root, output, refused, refused_before_the_command, superhue, text,
};

#[test]
fn settings_that_the_machine_does_not_have() {
    let _alone = alone();
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    let before = fs::read_to_string(path);
    if before.is_err() {
        return skip("settings", "this kernel has no transparent huge pages");
    }
    refused_before_the_command(&["--system", "no-such-knob=1"], 3, &["no-such-knob"]);
    if is_root() && fs::File::options().write(true).open(path).is_ok() {
        refused_before_the_command(&["--system", "enabled=banana"], 2, &["banana", "enabled"]);
        let twice = ["--system", "enabled=never", "--system", "enabled=always"];
        refused_before_the_command(&twice, 2, &["twice"]);
        // The first setting is restored when the second is refused.
        let second = ["--system", "enabled=never", "--system", "defrag=banana"];
        refused_before_the_command(&second, 2, &["banana"]);
    } else {
        skip("settings", "may not change the system's settings");
    }
    let arguments = ["run", "--system", "enabled=never", "--", "true"];
    if is_root() {
        refused(
            &output(&mut superhue(User::Ordinary, &arguments)),
            125,
            &["root"],
        );
    }
    assert_eq!(fs::read_to_string(path).unwrap(), before.unwrap());
}

#[test]
fn settings_of_an_arm_hold_while_it_runs_and_are_put_back() {
    let _alone = alone();
    let knob = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";
    let Ok(before) = fs::read_to_string(knob) else {
        return skip("khugepaged", "this kernel has no khugepaged");
    };
    let other = if before.trim() == "17" { "18" } else { "17" };
    let folder = folder();
    let suite = folder.path().join("suite.toml");
    let described = format!(
        "runs = 1\nmost-runs = 1\nwarmup = 0\n\
         [[arm]]\nname = 'never'\noptions = '--pages never'\n\
         [[arm]]\nname = 'kernel'\noptions = '--pages kernel'\n\
         [[arm]]\nname = 'tuned'\noptions = '--pages kernel --system khugepaged/max_ptes_none={other}'\n\
         [[program]]\nname = 'cat'\nkind = 'x'\ncommand = 'cat {knob}'\nspeed = 'none=^([0-9]+)$'\n"
    );
    fs::write(&suite, described).unwrap();
    let arguments = ["compare", "--json", "--suite", suite.to_str().unwrap()];
    let said = output(&mut superhue(User::Same, &arguments));
    assert!(said.status.success(), "{}", text(&said.stderr));
    let suite: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(fs::read_to_string(knob).unwrap(), before);
    if let Some(why) = suite["arms"][2]["skipped"].as_str() {
        assert!(why.contains("may not change"), "{why}");
        return skip("system", "this user may not change settings");
    }
    let rows = suite["programs"][0]["rows"].as_array().unwrap();
    let seen: Vec<f64> = rows
        .iter()
        .map(|row| row["speed"]["median"].as_f64().unwrap())
        .collect();
    let before: f64 = before.trim().parse().unwrap();
    assert_eq!(seen, [before, before, other.parse().unwrap()]);
}
