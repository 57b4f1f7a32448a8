//! `colors --plan`: the guide's example prints what the guide shows, documents fit their schema, and wrong files are refused with their place.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::schemas::fits;
use crate::support::daemon::Machine;
use crate::support::{User, folder, installed, output, python, refused, superhue, text};

/// Runs `colors --plan` on a file with these contents.
fn planned(contents: impl AsRef<[u8]>, options: &[&str]) -> Output {
    let folder = folder();
    let path = folder.path().join("plan.toml");
    fs::write(&path, contents).unwrap();
    let mut arguments = vec!["colors", "--plan", path.to_str().unwrap()];
    arguments.extend(options);
    output(&mut superhue(User::Ordinary, &arguments))
}

/// The blocks of indented lines below a heading of the guide.
fn blocks_of_guide(heading: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/page-colors.md");
    let guide = fs::read_to_string(path).unwrap();
    let part = guide.split(heading).nth(1).unwrap();
    let part = part.split("\n#").next().unwrap();
    let mut blocks = vec![String::new()];
    for line in part.lines() {
        match line.strip_prefix("    ") {
            Some(line) => *blocks.last_mut().unwrap() += &format!("{line}\n"),
            // An empty line may be a part of a block, or its end.
            None if line.is_empty() => *blocks.last_mut().unwrap() += "\n",
            None => blocks.push(String::new()),
        }
    }
    let blocks = blocks.iter().map(|block| block.trim().to_owned() + "\n");
    blocks.filter(|block| block != "\n").collect()
}

#[test]
fn the_example_of_the_guide_prints_what_the_guide_shows() {
    let blocks = blocks_of_guide("\n# Colors for real-time tasks\n");
    let [file, command, shown] = &blocks[..3] else {
        panic!("{blocks:?}")
    };
    assert_eq!(command, "superhue colors --plan plan.toml --of 32\n");
    let said = planned(file, &["--of", "32"]);
    let printed: Vec<String> = text(&said.stdout)
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    assert_eq!(printed.join("\n").trim(), shown.trim(), "{said:?}");
    assert_eq!(said.status.code(), Some(0));
    let json = planned(file, &["--of", "32", "--json"]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    fits("plan", &document);
    assert_eq!(document["fits"], true);
}

#[test]
fn tasks_that_do_not_fit_are_named_with_what_would_make_room() {
    let plan = "schedule = 'cyclic'\nothers = 2\n\
                [[task]]\nname = 'a'\ncpu = 0\ncolors = 4\n[[task]]\nname = 'b'\ncpu = 1\ncolors = 4\n\
                [[task]]\nname = 'c'\ncpu = 1\ncolors = 1\n";
    let said = planned(plan, &["--of", "8"]);
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let printed = text(&said.stdout);
    for words in [
        "a 4 + b 4 = 8, more than the 6 colors for tasks (8 less 2 for others)",
        "others = 0",
        "let a and b run in turns",
    ] {
        assert!(printed.contains(words), "no `{words}` in {printed}");
    }
    assert!(text(&said.stderr).contains("do not fit"), "{said:?}");
    let json = planned(plan, &["--of", "8", "--json"]);
    assert_eq!(json.status.code(), Some(3));
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    fits("plan", &document);
    assert_eq!(document["refusal"]["needed"], 8);
    assert_eq!(document["refusal"]["tasks"].as_array().unwrap().len(), 2);
    // With what it proposes, it fits.
    assert_eq!(
        planned(plan.replace("others = 2", "others = 0"), &["--of", "8"])
            .status
            .code(),
        Some(0)
    );
    let late = "schedule = 'cyclic'\n[[task]]\nname = 'a'\ncpu = 0\nseconds = [[1, 0.2], [2, 0.1]]\ndeadline = '50ms'\n";
    let json = planned(late, &["--of", "8", "--json"]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    fits("plan", &document);
    assert_eq!(document["refusal"]["obstacle"], "deadline");
}

#[test]
fn commands_and_rules_have_the_colors_of_the_plan() {
    let plan = "schedule = 'preemptive'\n\
                [[task]]\nname = 'a'\ncpu = '0-1'\ncolors = 3\ncommand = \"./a 'x y'\"\nunit = 'app-a\\x2db.service'\n\
                [[task]]\nname = 'b'\ncpu = 1\nmisses = [[1, 10], [4, 0]]\n";
    let json = planned(plan, &["--of", "8", "--json"]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    fits("plan", &document);
    let task = &document["tasks"][0];
    let command =
        "superhue run --colors 0-2 --placement recolor --strict --swap -- taskset -c 0-1 ./a 'x y'";
    assert_eq!(task["command"], command);
    assert_eq!(document["tasks"][1]["colors"], "3-6");
    assert_eq!(document["unused"], "7");
    // The daemon takes the rule as printed.
    let machine = Machine::new(task["rule"].as_str().unwrap());
    let mut check = machine.command(&["daemon", "--check", "--config"]);
    let said = output(check.arg(machine.at("etc")));
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(
        text(&said.stdout).contains(r"app-a\\x2db.service"),
        "{said:?}"
    );
}

/// Runs a program on a terminal of 40 columns; prints its output.
const NARROW: &str = r"
import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('4H', 24, 40, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
screen = b''
try:
    while part := os.read(terminal, 4096):
        screen += part
except OSError:
    # The program closed its side.
    pass
os.waitpid(pid, 0)
sys.stdout.buffer.write(screen.replace(b'\r\n', b'\n'))
";

#[test]
fn a_narrow_terminal_breaks_sentences_but_no_command_and_no_rule() {
    let Some(python) = python() else {
        return;
    };
    let folder = folder();
    let path = folder.path().join("plan.toml");
    let unit = "a-service-with-a-name-longer-than-the-terminal-is-wide@*.service";
    let plan = format!(
        "schedule = 'cyclic'\nothers = 2\n[[task]]\nname = 'a'\ncpu = 0\ncolors = 3\ncommand = './a --loop'\nunit = 'b {unit}'\n"
    );
    fs::write(&path, plan).unwrap();
    let mut command = Command::new(python);
    command
        .args(["-c", NARROW])
        .arg(installed().join("superhue"));
    command.args(["colors", "--of", "8", "--plan"]).arg(&path);
    let said = output(&mut command);
    let printed = text(&said.stdout);
    for line in [
        "  superhue run --colors 0-2 --placement recolor --strict --swap -- taskset -c 0 ./a --loop",
        &format!("  unit = \"b {unit}\""),
    ] {
        assert!(
            printed.lines().any(|shown| shown == line),
            "no `{line}` in {printed}"
        );
    }
    let sentence = printed.split("Other programs").nth(1).unwrap();
    assert!(sentence.contains("--colors 6-7"), "{printed}");
    assert!(sentence.lines().count() > 1, "{printed}");
    assert!(sentence.lines().all(|line| line.len() <= 40), "{printed}");
}

#[test]
fn a_plan_for_as_many_cpus_as_there_can_be_is_made_at_once() {
    let plan = "schedule = 'cyclic'\nshared-by = ['0-32767', '32768-65535']\n\
                [[task]]\nname = 'a'\ncpu = '0-32767'\ncolors = 5\n[[task]]\nname = 'b'\ncpu = '32768-65535'\ncolors = 6\n";
    let json = planned(plan, &["--of", "8", "--json"]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    fits("plan", &document);
    let colors = ["0-4", "0-5"].map(Value::from);
    for (task, colors) in colors.iter().enumerate() {
        assert_eq!(document["tasks"][task]["colors"], *colors, "{json:?}");
    }
}

#[test]
fn wrong_plans_are_refused_with_their_place() {
    let task = "[[task]]\nname = 'a'\ncpu = 0\ncolors = 1\n";
    let cyclic = format!("schedule = 'cyclic'\n{task}");
    let many: String = (0..40_000)
        .map(|at| task.replace("'a'", &format!("'a{at}'")))
        .collect();
    let cases: [(String, i32, &[&str]); 9] = [
        (String::new(), 2, &["plan.toml:1:1", "schedule is missing"]),
        ("schedule = 'cyclic'\n".to_owned(), 2, &["there is no task"]),
        (
            format!("{cyclic}{task}"),
            2,
            &["plan.toml:7:8", "another task is called `a`"],
        ),
        (
            format!("apart = [['a', 'b']]\n{cyclic}"),
            2,
            &["plan.toml:1:16", "no task `b`"],
        ),
        (
            cyclic.replace("colors = 1", "seconds = [[1, nan], [2, 0]]"),
            2,
            &["plan.toml:5:11", "NaN"],
        ),
        (
            cyclic.replace("cpu = 0", "cpu = 65536"),
            2,
            &["plan.toml:4:7"],
        ),
        (
            cyclic.replace("colors = 1", "colors = 9223372036854775807"),
            2,
            &["task a has 9223372036854775807 colors", "at most 4096"],
        ),
        (
            format!("others = 8\n{cyclic}"),
            2,
            &["others = 8 leaves none of the 8"],
        ),
        (
            format!("schedule = 'cyclic'\n{}", &many[..1 << 20]),
            1,
            &["cannot read the plan"],
        ),
    ];
    for (plan, status, words) in cases {
        refused(&planned(plan, &["--of", "8"]), status, words);
    }
    // As many bytes as a file may have: refused for its tasks.
    let most = format!(
        "schedule = 'cyclic'\n{}",
        &many[..900_000 / task.len() * task.len()]
    );
    let said = planned(most, &["--of", "8"]);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    refused(
        &planned([0xff, 0xfe], &["--of", "8"]),
        1,
        &["no text (UTF-8)"],
    );
    refused(&planned(&cyclic, &["--of", "0"]), 2, &["--of", "1..=4096"]);
    refused(
        &planned(&cyclic, &["--of", "8", "--verify"]),
        2,
        &["--verify"],
    );
    let missing = ["colors", "--plan", "/nowhere/plan.toml", "--of", "8"];
    refused(
        &output(&mut superhue(User::Same, &missing)),
        1,
        &["/nowhere/plan.toml"],
    );
    // Without --of the plan is for this machine.
    let said = planned(cyclic.replace("cpu = 0", "cpu = 65535"), &[]);
    refused(&said, 2, &["there is no CPU 65535", "--of"]);
}
