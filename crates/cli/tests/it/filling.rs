//! Programs that fill their memory in odd ways under the default policy: they compute what they compute without it, and their memory becomes huge.

use std::thread;

use crate::support::{User, collapse_works, compiled, folder, output, run_reported, text};

/// Returns the number after a word at the beginning of a line.
fn number(said: &str, word: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no `{word}` in {said}"))
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn memory_that_was_filled_in_any_way_is_whole_and_becomes_huge() {
    let fill = compiled("filling", include_str!("filling/fill.c"));
    let (Some(fill), true) = (fill, collapse_works()) else {
        return;
    };
    thread::scope(|scope| {
        for how in [
            "forwards",
            "backwards",
            "randomly",
            "forks",
            "again",
            "uses",
            "never",
            "shared",
        ] {
            let fill = &fill;
            scope.spawn(move || {
                let folder = folder();
                let report = folder.path().join("report.json");
                // On a busy machine superhue needs longer.
                for idle in ["2", "8", "30"] {
                    let more = ["--max-overhead", "20%", "--"];
                    let mut run = run_reported(User::Same, "auto", &report, &more);
                    run.arg(fill).args([how, "64", idle]);
                    let done = output(&mut run);
                    let said = text(&done.stdout);
                    assert!(
                        done.status.success(),
                        "{how}: {said} {}",
                        text(&done.stderr)
                    );
                    assert!(said.contains("ended well"), "{how}: {said}");
                    let huge = number(&said, "idled ");
                    assert!(huge <= 64 * 1024, "{how}: {said}");
                    if huge >= 60 * 1024 {
                        return;
                    }
                    assert!(idle != "30", "{how}: {said} {}", text(&done.stderr));
                }
            });
        }
    });
}
