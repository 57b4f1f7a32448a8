//! `superhue top` and `heat --follow` in a terminal: keys, sizes, endings, and a real daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{
    self, ChildGuard, FILLING, User, cgroups, collapse_works, is_root, output, python, skip,
    superhue, text, until,
};

/// A terminal with a program in it, which executes the given steps and prints the results.
///
/// `wait TEXT`, `gone TEXT` (until the screen shows it, or does not), `key TEXT`, `size WIDTH HEIGHT`, `signal NUMBER`, `stopped` (until it
/// is, with the terminal as before), `taken COUNT` (until the terminal was), `hangup`, `deaf` (from now on nothing is read), `pause SECONDS`,
/// `screen NAME`.
const TERMINAL: &str = r#"
import fcntl, json, os, pty, select, signal, struct, subprocess, sys, termios, time
sys.path.insert(0, "/usr/lib/python3/dist-packages")
import pyte
asked = json.load(sys.stdin)
width, height = 80, 24
main, side = pty.openpty()
before = termios.tcgetattr(side)
def resize(width, height):
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
resize(width, height)
def own():
    os.setsid()
    if asked["controlling"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = subprocess.Popen(asked["command"], stdin=side, stdout=side, stderr=side, preexec_fn=own, env=dict(os.environ, TERM="xterm-256color"))
screen = pyte.Screen(width, height)
stream = pyte.ByteStream(screen)
said, screens, deaf, gone = b"", {}, False, False
def read(wait):
    global said
    if deaf or gone:
        time.sleep(wait)
    elif select.select([main], [], [], wait)[0]:
        try:
            part = os.read(main, 65536)
        except OSError:
            return
        said += part
        stream.feed(part)
def shown():
    return "\n".join(line.rstrip() for line in screen.display)
failed = None
for step in asked["steps"]:
    what, rest = step[0], step[1:]
    if what in ("wait", "gone"):
        deadline = time.monotonic() + 60
        while (rest[0] in shown()) == (what == "gone"):
            read(0.05)
            if time.monotonic() > deadline or child.poll() is not None:
                failed = step
                break
    elif what == "stopped":
        deadline = time.monotonic() + 60
        while open(f"/proc/{child.pid}/stat").read().rsplit(") ")[-1][0] != "T":
            read(0.05)
            if time.monotonic() > deadline:
                failed = step
                break
        if termios.tcgetattr(side) != before:
            failed = step
    elif what == "taken":
        deadline = time.monotonic() + 60
        while said.count(b"\x1b[?1049h") < rest[0]:
            read(0.05)
            if time.monotonic() > deadline:
                failed = step
                break
    elif what == "key":
        os.write(main, rest[0].encode())
    elif what == "size":
        screen.resize(rest[1], rest[0])
        resize(*rest)
    elif what == "signal":
        os.kill(child.pid, rest[0])
    elif what == "deaf":
        deaf = True
    elif what == "pause":
        end = time.monotonic() + rest[0]
        while time.monotonic() < end:
            read(0.05)
    elif what == "screen":
        screens[rest[0]] = shown()
    elif what == "hangup":
        gone = True
        # Nobody else holds it open.
        os.close(side)
        os.close(main)
    if failed:
        break
status, deadline = None, time.monotonic() + 60
while status is None and time.monotonic() < deadline:
    read(0.02)
    status = child.poll()
if status is None:
    child.kill()
    child.wait()
elif not gone and not deaf:
    # All that it has left behind, of which one call does not read more than some KiB.
    while select.select([main], [], [], 0.1)[0]:
        read(0)
after = None if gone else termios.tcgetattr(side)
json.dump({
    "status": status, "failed": failed, "screens": screens, "last": shown(), "said": said.decode("utf8", "replace"),
    "restored": after == before, "left": said.rstrip().endswith(b"\x1b[?1049l"),
}, sys.stdout)
"#;

/// Returns the results of these steps with `superhue ARGUMENTS`; `None`, with a visible skip, where there is no terminal emulator.
pub(crate) fn in_terminal(arguments: &[&str], steps: &Value, controlling: bool) -> Option<Value> {
    let python = python()?;
    let probe = "import sys; sys.path.insert(0, '/usr/lib/python3/dist-packages'); import pyte";
    if !output(Command::new(python).args(["-c", probe]))
        .status
        .success()
    {
        skip("pyte", "no terminal emulator (Debian: python3-pyte)");
        return None;
    }
    let program = support::installed().join("superhue");
    let mut command = vec![program.to_str().unwrap().to_owned()];
    command.extend(arguments.iter().map(|&it| it.to_owned()));
    let asked = json!({"command": command, "steps": steps, "controlling": controlling});
    let folder = support::folder();
    let input = folder.path().join("steps.json");
    fs::write(&input, asked.to_string()).unwrap();
    let mut terminal = Command::new(python);
    terminal
        .args(["-c", TERMINAL])
        .stdin(fs::File::open(input).unwrap());
    let told = output(&mut terminal);
    let told: Value = serde_json::from_slice(&told.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&told.stderr)));
    assert!(
        told["failed"].is_null(),
        "{}\n{}",
        told["failed"],
        screen(&told["last"])
    );
    Some(told)
}

fn screen(value: &Value) -> &str {
    value.as_str().unwrap()
}

const TOP: [&str; 5] = [
    "top",
    "--interval",
    "100ms",
    "--socket",
    "/nowhere/ctl.sock",
];

fn is_restored(told: &Value, status: i32) {
    assert_eq!(told["status"], status, "{}", told["said"]);
    assert_eq!(told["restored"], true, "the terminal's settings");
    assert_eq!(told["left"], true, "{}", told["said"]);
}

#[test]
fn keys_and_sizes() {
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    let pid = sleeper.pid().to_string();
    let steps = json!([
        ["wait", "SERVICE"],
        ["wait", "q end"],
        ["wait", "none listens at /nowhere/ctl.sock"],
        ["key", "p"],
        ["wait", "PROCESS"],
        ["gone", "SERVICE  "],
        ["key", "/"],
        ["wait", "filter:"],
        ["key", pid],
        ["wait", format!("filter: {pid}")],
        ["key", "\r"],
        ["wait", format!("/ filter ({pid})")],
        ["wait", "sleep"],
        ["size", 200, 60],
        ["wait", "SERVICE"],
        ["screen", "large"],
        ["size", 20, 5],
        ["wait", "sleep"],
        ["size", 80, 24],
        ["wait", "q end"],
        ["key", "\r"],
        ["wait", format!("sleep ({pid})")],
        ["wait", "[heap]"],
        ["screen", "mappings"],
        ["key", "\u{1b}"],
        ["wait", "PROCESS"],
        ["key", "h"],
        ["wait", "any key goes back"],
        ["key", " "],
        ["wait", "PROCESS"],
        ["key", "o"],
        ["wait", "objects of 2 MiB or more"],
        ["key", "q"],
    ]);
    let Some(told) = in_terminal(&TOP, &steps, true) else {
        return;
    };
    is_restored(&told, 0);
    let large = screen(&told["screens"]["large"]);
    assert!(
        large.lines().count() > 24 && large.contains("AGE"),
        "{large}"
    );
    let mappings = screen(&told["screens"]["mappings"]);
    assert!(
        mappings.contains("COVER") && mappings.contains("HEAT"),
        "{mappings}"
    );
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    for (steps, status) in [
        (json!([["wait", "q end"], ["key", "\u{3}"]]), 0),
        (json!([["wait", "q end"], ["signal", 1]]), 129),
        (json!([["wait", "q end"], ["signal", 2]]), 130),
        (json!([["wait", "q end"], ["signal", 15]]), 143),
        // While stopped, it gives the terminal back; when continued, it takes the terminal again.
        (
            json!([
                ["wait", "q end"],
                ["signal", 20],
                ["stopped"],
                ["signal", 18],
                ["taken", 2],
                ["key", "q"]
            ]),
            0,
        ),
        (
            json!([
                ["wait", "q end"],
                ["key", "\u{1a}"],
                ["stopped"],
                ["signal", 18],
                ["taken", 2],
                ["key", "q"]
            ]),
            0,
        ),
    ] {
        let Some(told) = in_terminal(&TOP, &steps, true) else {
            return;
        };
        is_restored(&told, status);
    }
}

/// Neither a terminal that is gone nor one that accepts nothing more blocks superhue, or makes it loop for ever.
#[test]
fn a_terminal_that_goes_away_ends_it() {
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    let pid = sleeper.pid().to_string();
    let tracks = output(&mut superhue(User::Same, &["heat", "--for", "300ms", &pid]));
    let heat = [
        "heat",
        "--follow",
        "--interval",
        "50ms",
        "--max-overhead",
        "100%",
        &pid,
    ];
    let mut programs = vec![(&TOP[..], "q end")];
    if tracks.status.success() {
        programs.push((&heat[..], "q ends"));
    } else {
        skip("tracking", "accesses cannot be tracked here");
    }
    for (program, shown) in programs {
        // With and without a controlling terminal: without, there is no signal.
        for controlling in [true, false] {
            let steps = json!([["wait", shown], ["hangup"]]);
            let Some(told) = in_terminal(program, &steps, controlling) else {
                return;
            };
            assert_eq!(told["status"], 129, "{program:?} {controlling}: {told}");
        }
        let mut steps = vec![json!(["wait", shown]), json!(["deaf"])];
        // More than a terminal buffers for its reader.
        for n in 0..12 {
            steps.extend([json!(["size", 300 + n, 100]), json!(["pause", 0.3])]);
        }
        steps.push(json!(["signal", 15]));
        let told = in_terminal(program, &json!(steps), true).unwrap();
        let expected = if program[0] == "top" { 143 } else { 0 };
        assert_eq!(told["status"], expected, "{program:?}: {told}");
    }
}

#[test]
fn a_daemon_that_does_not_answer_holds_nobody_up() {
    let folder = support::folder();
    let socket = folder.path().join("ctl.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let socket = socket.to_str().unwrap();
    let arguments = ["top", "--interval", "100ms", "--socket", socket];
    let steps = json!([
        ["wait", "superhue top"],
        ["wait", "RSS"],
        ["key", "p"],
        ["wait", "PROCESS"],
        ["key", "q"]
    ]);
    if let Some(told) = in_terminal(&arguments, &steps, true) {
        is_restored(&told, 0);
        assert!(
            screen(&told["last"]).contains("daemon   ..."),
            "{}",
            told["last"]
        );
    }
}

#[test]
fn names_do_not_reach_the_terminal_as_commands() {
    let Some(python) = python() else { return };
    // Sets the title, reverses the direction of letters.
    let program = "
import time
open('/proc/self/comm', 'wb').write(b'\\x1b]0;pwn\\x07\\xe2\\x80\\xae\\xc2\\x9bz')
print(flush=True)
time.sleep(1000)";
    let mut evil = Command::new(python);
    let mut evil = ChildGuard::start(evil.args(["-c", program]).stdout(Stdio::piped()));
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(evil.0.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    let pid = evil.pid().to_string();
    let steps = json!([
        ["wait", "q end"],
        ["key", format!("p/{pid}\r")],
        ["wait", pid],
        ["wait", "pwn"],
        ["key", "\r"],
        ["wait", format!("({pid})")],
        ["wait", "HEAT"],
        ["key", "q"],
    ]);
    let Some(told) = in_terminal(&TOP, &steps, true) else {
        return;
    };
    is_restored(&told, 0);
    let said = screen(&told["said"]);
    for command in ["\u{1b}]", "\u{7}", "\u{9b}", "\u{202e}"] {
        assert!(!said.contains(command), "{said:?}");
    }
    let once = output(&mut superhue(User::Same, &["top", "--once", "processes"]));
    let once = text(&once.stdout);
    assert!(once.contains("pwn") && once.chars().all(|it| it == '\n' || !it.is_control()));
    assert!(!once.contains('\u{202e}'));
}

#[test]
fn without_a_terminal_there_is_one_table() {
    for arguments in [
        &["top"][..],
        &["top", "--once"],
        &["top", "processes"],
        &["top", "objects", "--once"],
    ] {
        let told = output(&mut superhue(User::Same, arguments));
        let shown = text(&told.stdout);
        assert!(
            told.status.success() && shown.contains("RSS"),
            "{arguments:?}: {shown}"
        );
        assert!(!shown.contains('\u{1b}'));
        assert!(shown.contains("daemon"), "{shown}");
    }
    for wrong in [
        &["top", "--interval", "1ms"][..],
        &["top", "--tracker", "idle"],
        &["top", "x"],
    ] {
        let told = output(&mut superhue(User::Same, wrong));
        assert_eq!(told.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_may_not_be_read_is_counted_and_not_0() {
    if !is_root() {
        return skip("root", "another user's process is made by root here");
    }
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    let told = output(&mut superhue(User::Ordinary, &["top", "--json"]));
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert!(told["processes_denied"].as_u64() > Some(0));
    let processes = told["processes"].as_array().unwrap();
    let found = processes
        .iter()
        .find(|it| it["pid"] == sleeper.pid())
        .unwrap();
    assert!(
        found["resident_bytes"].as_u64() > Some(0),
        "anybody may see that"
    );
    for unknown in ["pss_bytes", "huge_bytes", "coverage", "age_seconds"] {
        assert!(found[unknown].is_null(), "{found}");
    }
    assert_eq!(found["processes_denied"], 1);
    let shown = text(&output(&mut superhue(User::Ordinary, &["top", "--once"])).stdout);
    assert!(shown.contains("processes may not be read"), "{shown}");
}

/// A daemon with one rule, for one cgroup of the test's own.
struct SingleRuleDaemon {
    folder: tempfile::TempDir,
    group: PathBuf,
}

impl SingleRuleDaemon {
    fn new() -> Option<Self> {
        let group = cgroups()?.join(format!("superhue-top-{}.slice", std::process::id()));
        let service = group.join("memory.service");
        if let Err(error) = fs::create_dir_all(&service) {
            skip("cgroup", &format!("may not make one: {error}"));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("etc");
        fs::create_dir(&config).unwrap();
        let rule = format!(
            "[[rule]]\nname = \"mine\"\ncgroup = \"/{}/**\"\npages = \"resident\"\nmax-stall = \"1ms\"\n",
            group.file_name().unwrap().to_str().unwrap()
        );
        let file = config.join("superhue.toml");
        fs::write(&file, rule).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        Some(Self { folder, group })
    }

    fn socket(&self) -> String {
        self.folder
            .path()
            .join("run/ctl.sock")
            .to_str()
            .unwrap()
            .to_owned()
    }

    fn daemon(&self) -> ChildGuard {
        let config = self.folder.path().join("etc");
        let arguments = ["daemon", "--socket", &self.socket(), "--config"];
        let mut command = superhue(User::Same, &arguments);
        ChildGuard::start(command.arg(config).stderr(Stdio::null()))
    }
}

impl Drop for SingleRuleDaemon {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.group.join("memory.service"));
        let _ = fs::remove_dir(&self.group);
    }
}

#[test]
fn what_a_daemon_does_is_shown() {
    if !is_root() {
        return skip("root", "the daemon is root's");
    }
    let (Some(python), true) = (python(), collapse_works()) else {
        return;
    };
    let Some(ruled) = SingleRuleDaemon::new() else {
        return;
    };
    let _daemon = ruled.daemon();
    let program = format!(
        "{FILLING}
import time
while True:
    m = fill(64)
    time.sleep(1)
    m.close()"
    );
    let mut command = Command::new(python);
    let memory = ChildGuard::start(command.args(["-c", &program]).stdin(Stdio::null()));
    let members = ruled.group.join("memory.service/cgroup.procs");
    fs::write(members, memory.pid().to_string()).unwrap();
    let socket = ruled.socket();
    let arguments = ["top", "--json", "--interval", "1s", "--socket", &socket];
    let (told, mine) = until("the daemon's collapses are seen", || {
        let told = output(&mut superhue(User::Same, &arguments));
        let told: Value = serde_json::from_slice(&told.stdout).unwrap();
        let services = told["services"].as_array().unwrap().clone();
        let mine = services
            .into_iter()
            .find(|it| it["name"] == "memory.service")?;
        (mine["collapses_per_second"].as_f64() > Some(0.0)).then_some((told, mine))
    });
    assert_eq!(mine["rules"], json!(["mine"]));
    assert!(
        told["daemon"]["cpu_share"].as_f64().is_some(),
        "{}",
        told["daemon"]
    );
    assert_eq!(told["daemon"]["rules"][0]["name"], "mine");
    let processes = told["processes"].as_array().unwrap();
    let process = processes
        .iter()
        .find(|it| it["pid"] == memory.pid())
        .unwrap();
    assert_eq!(
        (&process["rules"], &process["service"]),
        (&json!(["mine"]), &json!("memory.service"))
    );
    assert!(process["stalled_share"].as_f64().is_some(), "{process}");
    // The same in a terminal.
    let arguments = ["top", "--interval", "100ms", "--socket", &socket];
    let steps = json!([
        ["wait", "COLL/s"],
        ["wait", "STALL/s"],
        ["wait", "1 rule"],
        ["wait", "takes"],
        ["key", "/mine\r"],
        ["wait", "memory.service"],
        ["key", "q"],
    ]);
    if let Some(told) = in_terminal(&arguments, &steps, true) {
        is_restored(&told, 0);
    }
    drop(memory);
    until("the cgroup is empty", || {
        fs::remove_dir(ruled.group.join("memory.service")).ok()
    });
}
