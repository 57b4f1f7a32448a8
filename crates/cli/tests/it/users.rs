//! The daemon makes huge pages for the users of its configuration, and a hostile user gets nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde_json::{Value, json};
use superhue::procfs::Roots;
use superhue::procfs::process::{identify, is_huge_mapped, maps};

use crate::support::daemon::Machine;
use crate::support::{
    self, ChildGuard, FILLING, NOBODY, TEST_TIMEOUT, User, copy_program, is_root, lives, python,
    send, skip, text, until,
};

/// Another user that no rule allows.
const STRANGER: u32 = 64_123;

const ALLOWED: &str = "[users]\nallow = [\"65534\"]\nbudget = \"1G\"\n";

/// The daemon becomes its users, which takes root.
fn may_serve() -> bool {
    if !is_root() {
        skip("root", "only root can act for other users");
    }
    is_root()
}

fn served(machine: &Machine) -> PathBuf {
    machine.status(|status| status["users"]["socket"].is_string());
    machine.at("run/users.sock")
}

/// Runs `work` in a thread with the identity of a user without capabilities.
fn as_user<T: Send + 'static>(
    uid: u32,
    groups: &[u32],
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let thread = thread::spawn(move || {
        set_thread_groups(&groups).unwrap();
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).unwrap();
        work()
    });
    thread.join().unwrap()
}

/// A connection of a user.
fn connect(socket: &Path, uid: u32) -> UnixStream {
    connect_with(socket, uid, &[])
}

fn connect_with(socket: &Path, uid: u32, groups: &[u32]) -> UnixStream {
    let path = socket.to_owned();
    let stream = as_user(uid, groups, move || UnixStream::connect(path).unwrap());
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

fn framed(message: &Value) -> Vec<u8> {
    let body = message.to_string().into_bytes();
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    [&length[..], &body].concat()
}

/// Returns the next message; `None` at the end.
fn message(stream: &mut UnixStream) -> Option<Value> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut body = vec![0; usize::try_from(u32::from_le_bytes(head)).unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}

/// Returns a connection of an allowed user.
fn welcome(socket: &Path, uid: u32) -> UnixStream {
    let mut stream = connect(socket, uid);
    let greeting = message(&mut stream).unwrap();
    assert_eq!(greeting["greeting"], "welcome", "{greeting}");
    assert_eq!(greeting["client"], std::process::id());
    stream
}

/// Returns the reason that a refused user reads.
fn refusal(mut stream: UnixStream) -> String {
    let greeting = message(&mut stream).unwrap();
    assert_eq!(greeting["greeting"], "refused", "{greeting}");
    assert_eq!(message(&mut stream), None, "let go");
    greeting["text"].as_str().unwrap().to_owned()
}

/// A program that maps `mebibytes`, writes one page in `every`, and holds them.
struct Target {
    program: ChildGuard,
    regions: Vec<superhue::model::Region>,
}

impl Target {
    fn start(user: u32, mebibytes: u64, every: u64, prelude: &str) -> Option<Self> {
        let mut python = Command::new(python()?);
        python.uid(user).gid(user);
        Some(Self::run(python, mebibytes, every, prelude))
    }

    fn run(mut python: Command, mebibytes: u64, every: u64, prelude: &str) -> Self {
        let script = format!(
            "{prelude}\nimport mmap, sys\nm = mmap.mmap(-1, {mebibytes} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
             for at in range(0, len(m), 4096 * {every}): m[at] = 7\n\
             print('ready', flush=True)\nsys.stdin.read()\n\
             assert all(m[at] == 7 for at in range(0, len(m), 4096 * {every}))"
        );
        python.args(["-c", &script]).current_dir("/");
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = ChildGuard::start(&mut python);
        let mut line = String::new();
        let output = program.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let found = maps(&Roots::default(), program.pid()).unwrap();
        let largest = found.iter().max_by_key(|vma| vma.range.len()).unwrap();
        let regions = largest.range.regions().collect();
        Self { program, regions }
    }

    fn id(&self) -> Value {
        let id = identify(&Roots::default(), self.program.pid()).unwrap();
        serde_json::to_value(id).unwrap()
    }

    /// An order to collapse all of its memory.
    fn order(&self) -> Value {
        self.order_as(&self.id())
    }

    fn order_as(&self, id: &Value) -> Value {
        let collapse =
            |region| json!({"do": "collapse", "process": id, "region": region, "growth": 0});
        let actions: Vec<Value> = self.regions.iter().map(collapse).collect();
        json!({"plan": {"actions": actions}})
    }

    fn huge(&self) -> usize {
        let id = identify(&Roots::default(), self.program.pid()).unwrap();
        let is_huge = |region: &&superhue::model::Region| {
            is_huge_mapped(&Roots::default(), id, **region).unwrap() == Some(true)
        };
        self.regions.iter().filter(is_huge).count()
    }

    /// Checks that its memory still has what it wrote.
    fn check_bytes(mut self) {
        drop(self.program.0.stdin.take());
        assert!(self.program.wait().success());
    }
}

/// Sends an order; returns the number of results of each kind.
fn ordered(stream: &mut UnixStream, order: &Value) -> BTreeMap<String, usize> {
    stream.write_all(&framed(order)).unwrap();
    let reply = message(stream).unwrap();
    let mut counted = BTreeMap::new();
    for result in reply["outcome"]["results"].as_array().unwrap() {
        let effect = result["effect"].as_str().unwrap();
        let more = [&result["reason"], &result["errno"]];
        let more = more
            .iter()
            .find(|it| !it.is_null())
            .map(|it| format!(" {it}"));
        *counted
            .entry(format!("{effect}{}", more.unwrap_or_default()))
            .or_default() += 1;
    }
    counted
}

/// Returns the processes that act for users.
fn workers(daemon: &ChildGuard) -> Vec<u32> {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let children = fs::read_to_string(children).unwrap_or_default();
    let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    children.filter(|&pid| lives(pid)).collect()
}

fn one_worker(daemon: &ChildGuard) -> u32 {
    let found = until("a worker is there", || match workers(daemon)[..] {
        [] => None,
        ref all => Some(all.to_vec()),
    });
    assert_eq!(found.len(), 1);
    found[0]
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")));
    line.unwrap().split_once(':').unwrap().1.trim()
}

#[test]
fn a_worker_is_its_user_with_one_capability_and_nothing_of_the_daemons() {
    if !may_serve() {
        return;
    }
    let machine = Machine::new(ALLOWED);
    // The worker must not depend on the signals and files that the daemon itself inherited.
    let mut command = Command::new("sh");
    let script = "trap '' INT QUIT HUP USR1; umask 0; cd /tmp; exec 9>leak; exec \"$@\" 2>log";
    command
        .current_dir(machine.folder.path())
        .args(["-c", &script.replace("/tmp", ".")]);
    command.arg("sh").arg(support::installed().join("superhue"));
    command.args(["daemon", "--config"]).arg(machine.at("etc"));
    command.arg("--socket").arg(machine.at("run/ctl.sock"));
    let daemon = ChildGuard::start(command.env("LEAKED", "1").stdin(Stdio::null()));
    let socket = served(&machine);
    let mut stream = connect_with(&socket, NOBODY, &[5, 6]);
    assert_eq!(message(&mut stream).unwrap()["greeting"], "welcome");
    let worker = one_worker(&daemon);
    let read = |name: &str| fs::read_to_string(format!("/proc/{worker}/{name}")).unwrap();
    let status = read("status");
    for (name, expected) in [
        ("Uid", "65534\t65534\t65534\t65534"),
        ("Gid", "65534\t65534\t65534\t65534"),
        ("Groups", "5 6"),
        ("CapInh", "0000000000000000"),
        ("CapPrm", "0000000000800000"),
        ("CapEff", "0000000000800000"),
        ("CapBnd", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        // The daemon's own filter, which the worker inherits: see `cannot.rs`.
        ("Seccomp", "2"),
        ("SigBlk", "0000000000000000"),
        ("Threads", "1"),
        ("Umask", "0077"),
    ] {
        assert_eq!(field(&status, name), expected, "{name}");
    }
    // SIGPIPE alone; the C library reserves 32 and 33.
    let ignored = u64::from_str_radix(field(&status, "SigIgn"), 16).unwrap();
    assert_eq!(ignored & 0x7fff_ffff, 1 << 12);
    assert_eq!(read("environ"), "");
    let link = |name: &str| fs::read_link(format!("/proc/{worker}/{name}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    // `/dev/null` twice, and otherwise only the connection.
    let files = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
    let files = files.map(|file| link(&format!("fd/{}", file.unwrap().file_name().display())));
    let mut kinds: BTreeMap<PathBuf, usize> = BTreeMap::new();
    files.for_each(|file| *kinds.entry(file).or_default() += 1);
    assert_eq!(kinds.remove(Path::new("/dev/null")), Some(2), "{kinds:?}");
    assert_eq!(kinds.len(), 1, "{kinds:?}");
    assert!(kinds.keys().all(
        |file| file.starts_with("socket:") || file.display().to_string().starts_with("socket:")
    ));
    let limits = read("limits");
    for name in ["Max processes", "Max core file size", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line[name.len()..].trim().starts_with('0'), "{line}");
    }
    // Its user can neither read nor trace it.
    let denied = as_user(NOBODY, &[5, 6], move || {
        [
            "mem", "environ", "maps", "pagemap", "fd/0", "auxv", "syscall",
        ]
        .map(|name| {
            let path = format!("/proc/{worker}/{name}");
            fs::File::open(&path)
                .map(|mut file| file.read(&mut [0; 8]).map(drop))
                .and_then(|read| read)
        })
    });
    for result in denied {
        let error = result.unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
    }
}

#[test]
fn memory_of_the_user_is_collapsed_and_all_other_is_not() {
    if !may_serve() || !support::collapse_works() {
        return;
    }
    let machine = Machine::new(ALLOWED);
    let _daemon = machine.start();
    let socket = served(&machine);
    let Some(own) = Target::start(NOBODY, 32, 1, "") else {
        return;
    };
    let roots = Target::start(0, 8, 1, "").unwrap();
    let strangers = Target::start(STRANGER, 8, 1, "").unwrap();
    let hidden = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)";
    let hidden = Target::start(NOBODY, 8, 1, hidden).unwrap();
    // A setuid program that the user has started.
    let setuid = machine.at("setuid");
    copy_program(&fs::canonicalize(python().unwrap()).unwrap(), &setuid);
    chown(&setuid, Some(STRANGER), None).unwrap();
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut command = Command::new(&setuid);
    command.uid(NOBODY).gid(NOBODY).env("PYTHONHOME", "/usr");
    let setuid = Target::run(
        command,
        8,
        1,
        "import os\nprint(os.geteuid(), file=sys.stderr) if 0 else None",
    );
    let mut stream = welcome(&socket, NOBODY);
    for other in [&roots, &strangers, &hidden, &setuid] {
        let counted = ordered(&mut stream, &other.order());
        assert!(!counted.contains_key("done"), "{counted:?}");
        assert_eq!(other.huge(), 0);
    }
    // A number that was used again: another start time.
    let mut other = own.id();
    other["start_ticks"] = json!(1);
    let counted = ordered(&mut stream, &own.order_as(&other));
    assert_eq!(counted.keys().collect::<Vec<_>>(), ["vanished"]);
    assert_eq!(own.huge(), 0);
    let counted = ordered(&mut stream, &own.order());
    let done = counted.get("done").copied().unwrap_or_default();
    assert!(done > own.regions.len() / 2, "{counted:?}");
    assert_eq!(own.huge(), done);
    let first = own.regions[0];
    let split =
        json!({"plan": {"actions": [{"do": "split", "process": own.id(), "region": first}]}});
    stream.write_all(&framed(&split)).unwrap();
    assert!(message(&mut stream).is_some());
    for target in [own, roots, strangers, hidden, setuid] {
        target.check_bytes();
    }
    let status = machine.status(|status| status["users"]["clients"] == 1);
    assert_eq!(status["users"]["started"], 1);
}

#[test]
fn the_budget_is_kept_whatever_the_client_says() {
    if !may_serve() || !support::collapse_works() {
        return;
    }
    // One page in each huge page: each adds 511.
    let machine = Machine::new(&ALLOWED.replace("1G", "5M"));
    let _daemon = machine.start();
    let socket = served(&machine);
    let Some(target) = Target::start(NOBODY, 64, 512, "") else {
        return;
    };
    let mut stream = welcome(&socket, NOBODY);
    let counted = ordered(&mut stream, &target.order());
    assert_eq!(counted.get("done"), Some(&2), "{counted:?}");
    assert!(
        counted.contains_key("skipped \"user-budget\""),
        "{counted:?}"
    );
    assert_eq!(target.huge(), 2);
    target.check_bytes();
}

#[test]
fn a_refused_user_reads_the_reason() {
    if !may_serve() {
        return;
    }
    let machine = Machine::new(
        "[users]\nallow = [\"65534\", \"@64200\"]\nclients = 3\nclients-per-user = 2\n",
    );
    let _daemon = machine.start();
    let socket = served(&machine);
    let heard = refusal(connect(&socket, STRANGER));
    assert!(heard.contains("does not allow user 64123"), "{heard}");
    assert!(heard.contains("[users]"), "{heard}");
    let heard = refusal(connect(&socket, 0));
    assert!(heard.contains("root is not served"), "{heard}");
    // Allowed by a group.
    let mut member = connect_with(&socket, STRANGER, &[7, 64_200]);
    assert_eq!(message(&mut member).unwrap()["greeting"], "welcome");
    let first = welcome(&socket, NOBODY);
    let _second = welcome(&socket, NOBODY);
    let heard = refusal(connect(&socket, NOBODY));
    assert!(heard.contains("2 programs of this user"), "{heard}");
    let heard = refusal(connect_with(&socket, STRANGER, &[64_200]));
    assert!(heard.contains("for 3 programs already"), "{heard}");
    drop(first);
    machine.status(|status| status["users"]["clients"] == 2);
    let _third = welcome(&socket, NOBODY);
    // A pause also closes existing connections.
    assert!(machine.ctl(&["pause"]).status.success());
    assert_eq!(message(&mut member), None);
    let heard = refusal(connect(&socket, NOBODY));
    assert!(heard.contains("is paused"), "{heard}");
    assert!(machine.ctl(&["resume"]).status.success());
    machine.status(|status| status["users"]["clients"] == 0);
    drop(welcome(&socket, NOBODY));
    // A reload removes the user.
    let last = welcome(&socket, NOBODY);
    machine.write("superhue.toml", &ALLOWED.replace("65534", "64123"));
    assert!(machine.ctl(&["reload"]).status.success());
    let mut last = last;
    assert_eq!(message(&mut last), None);
    assert!(refusal(connect(&socket, NOBODY)).contains("does not allow"));
    drop(welcome(&socket, STRANGER));
    machine.write("superhue.toml", "");
    assert!(machine.ctl(&["reload"]).status.success());
    assert!(!socket.exists(), "nobody is served any more");
}

#[test]
fn nonsense_ends_its_worker_and_nothing_else() {
    if !may_serve() {
        return;
    }
    let machine = Machine::new(&format!("{ALLOWED}clients-per-user = 40\nclients = 40\n"));
    let daemon = machine.start();
    let socket = served(&machine);
    let good = welcome(&socket, NOBODY);
    let many = json!({"plan": {"actions": vec![json!({"do": "split", "process": {"pid": 1, "start_ticks": 1}, "region": 1}); 129]}});
    let nonsense: Vec<Vec<u8>> = vec![
        vec![0xff; 8],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        framed(&json!([])),
        framed(&json!({"plan": {"actions": [{"do": "explode"}]}})),
        framed(&many),
        [&[0xff, 0xff, 3, 0][..], &vec![b'['; 0x3ffff]].concat(),
        vec![0; 1 << 20],
    ];
    let count = nonsense.len();
    for bytes in nonsense {
        let mut stream = welcome(&socket, NOBODY);
        // The daemon may close the connection before all was sent.
        let _ = stream.write_all(&bytes);
        assert_eq!(message(&mut stream), None);
    }
    machine.status(|status| {
        (&status["users"]["failed"], &status["users"]["clients"]) == (&count.into(), &1.into())
    });
    // Half a message, a connection that never reads, one byte after the other.
    let mut half = welcome(&socket, NOBODY);
    half.write_all(&[9, 0, 0, 0, b'{']).unwrap();
    let deaf = welcome(&socket, NOBODY);
    deaf.set_nonblocking(true).unwrap();
    let order = framed(
        &json!({"plan": {"actions": vec![json!({"do": "split", "process": {"pid": 1, "start_ticks": 1}, "region": 1}); 128]}}),
    );
    let mut said = &deaf;
    for _ in 0..10_000 {
        if said.write_all(&order).is_err() {
            break;
        }
    }
    let mut slow = welcome(&socket, NOBODY);
    for byte in framed(&json!({"plan": {"actions": []}})) {
        slow.write_all(&[byte]).unwrap();
    }
    assert_eq!(message(&mut slow).unwrap()["outcome"]["results"], json!([]));
    machine.status(|status| status["users"]["clients"] == 4);
    drop((good, half, deaf, slow));
    machine.status(|status| status["users"]["clients"] == 0);
    until("all workers are gone", || {
        workers(&daemon).is_empty().then_some(())
    });
}

#[test]
fn a_flood_of_connections_holds_nobody_up() {
    if !may_serve() {
        return;
    }
    let machine = Machine::new(ALLOWED);
    let daemon = machine.start();
    let socket = served(&machine);
    let files = || {
        fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
            .unwrap()
            .count()
    };
    let before = files();
    let flood = |uid: u32| {
        let path = socket.clone();
        thread::spawn(move || {
            as_user(uid, &[], move || {
                let mut kept = Vec::new();
                for _ in 0..1000 {
                    kept.extend(UnixStream::connect(&path));
                    if kept.len() > 100 {
                        kept.clear();
                    }
                }
            });
        })
    };
    // An allowed user, and a stranger.
    let floods = [flood(NOBODY), flood(STRANGER)];
    let mut most = 0;
    while !floods.iter().all(thread::JoinHandle::is_finished) {
        let begun = Instant::now();
        machine.is_up();
        println!("answered after {:?}", begun.elapsed());
        most = most.max(workers(&daemon).len());
    }
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    assert!(most <= 4, "{most}");
    let status = machine.status(|status| {
        let users = &status["users"];
        let heard = |name: &str| users[name].as_u64().unwrap();
        users["clients"] == 0 && heard("started") + heard("refused") >= 2000
    });
    assert!(status["users"]["refused"].as_u64() > Some(1000), "{status}");
    until("descriptors are closed", || {
        (files() <= before).then_some(())
    });
    // An allowed user is served again.
    until("the user is served again", || {
        let mut stream = connect(&socket, NOBODY);
        (message(&mut stream)?["greeting"] == "welcome").then_some(())
    });
}

#[test]
fn workers_end_with_their_client_and_with_the_daemon_and_not_the_other_way_round() {
    if !may_serve() {
        return;
    }
    let machine = Machine::new(ALLOWED);
    let mut daemon = machine.start();
    let socket = served(&machine);
    // Its user may kill it.
    let mut stream = welcome(&socket, NOBODY);
    let worker = one_worker(&daemon);
    as_user(NOBODY, &[], move || send(worker, Signal::KILL));
    assert_eq!(message(&mut stream), None);
    let status = machine.status(|status| status["users"]["clients"] == 0);
    assert_eq!(
        status["users"]["failed"], 0,
        "that is the user's own business"
    );
    // Or stop it, and leave.
    let stopped = welcome(&socket, NOBODY);
    let worker = one_worker(&daemon);
    as_user(NOBODY, &[], move || send(worker, Signal::STOP));
    until("it has stopped", || {
        (support::state(worker) == Some('T')).then_some(())
    });
    drop(stopped);
    // It still counts as a client.
    machine.status(|status| status["users"]["clients"] == 1);
    let _second = welcome(&socket, NOBODY);
    let both = until("both are there", || match workers(&daemon)[..] {
        [one, other] => Some([one, other]),
        _ => None,
    });
    for signal in [Signal::KILL, Signal::TERM] {
        let left = workers(&daemon);
        assert!(!left.is_empty());
        daemon.signal(signal);
        daemon.wait();
        until("the workers are gone", || {
            (!left.iter().any(|&pid| lives(pid))).then_some(())
        });
        daemon = machine.start();
        let again = daemon.pid();
        machine.status(|status| status["pid"] == again && status["users"]["socket"].is_string());
        std::mem::forget(welcome(&socket, NOBODY));
        one_worker(&daemon);
    }
    assert!(!both.iter().any(|&pid| lives(pid)));
}

/// `superhue` as an ordinary user whose daemon listens at `socket`.
fn ordinary(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = support::superhue(User::Ordinary, arguments);
    command.env("SUPERHUE_USERS_SOCKET", socket);
    command
}

/// A Python program that fills `mebibytes`, and waits until nearly all of them are huge.
fn until_huge(mebibytes: u64) -> String {
    format!(
        "{FILLING}\nimport re, time\nmemory = fill({mebibytes})\n\
         def huge(): return int(re.search(r'AnonHugePages: *(\\d+)', open('/proc/self/smaps_rollup').read())[1])\n\
         deadline = time.monotonic() + 100\n\
         while huge() < 0.95 * ({mebibytes} << 10) and time.monotonic() < deadline: time.sleep(0.02)\n\
         print(huge() >= 0.95 * ({mebibytes} << 10))\nassert whole(memory)"
    )
}

#[test]
fn a_command_of_an_ordinary_user_gets_huge_pages_by_the_daemon() {
    if !may_serve() || !support::collapse_works() {
        return;
    }
    let Some(python) = python() else { return };
    let machine = Machine::new(ALLOWED);
    let _daemon = machine.start();
    let socket = served(&machine);
    let reports = support::folder();
    let report = reports.path().join("report");
    let arguments = ["run", "--quiet", "--pages", "resident", "--report"];
    let mut command = ordinary(&socket, &arguments);
    command
        .arg(&report)
        .args(["--", python, "-c", &until_huge(256)]);
    let output = support::output(&mut command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "True\n");
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let notes = report["mechanism"]["notes"].to_string();
    assert!(
        notes.contains("makes the huge pages") && notes.contains("1.0 GiB"),
        "{notes}"
    );
    assert!(report["collapses"]["done"].as_u64() > Some(100), "{report}");
    machine.status(|status| status["users"]["clients"] == 0);
    // Also for processes that run already.
    let target = Target::start(NOBODY, 64, 1, "").unwrap();
    let pid = target.program.pid().to_string();
    let mut command = ordinary(&socket, &["attach", "--pages", "resident", &pid]);
    let mut attached = ChildGuard::start(command.stderr(Stdio::null()));
    until("it is huge", || {
        (target.huge() * 100 >= target.regions.len() * 95).then_some(())
    });
    attached.signal(Signal::INT);
    assert!(attached.wait().success());
    target.check_bytes();
    let mut check = ordinary(&socket, &["check", "--json", "user-service"]);
    let output = support::output(&mut check);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = &checked["capabilities"][0];
    assert_eq!(found["verdict"], "yes", "{found}");
}

#[test]
fn an_unserved_user_reads_the_three_ways() {
    let ways = [
        "[users]",
        "setcap cap_sys_nice+ep",
        "glibc.malloc.hugetlb=1",
    ];
    let machine = Machine::new(ALLOWED);
    let socket = machine.at("nobody.sock");
    let output = support::output(&mut ordinary(
        &socket,
        &["run", "--", "sh", "-c", "echo out; exit 7"],
    ));
    if text(&output.stderr).contains("CAP_SYS_NICE") {
        assert_eq!(
            (output.status.code(), &*text(&output.stdout)),
            (Some(7), "out\n")
        );
        let heard = text(&output.stderr);
        for way in ways {
            assert_eq!(heard.matches(way).count(), 1, "{way}: {heard}");
        }
        assert!(heard.contains("no daemon serves users at"), "{heard}");
    } else {
        skip(
            "ordinary-user",
            "the user of the tests may collapse without help",
        );
    }
    let Some(target) = Target::start(
        if is_root() {
            NOBODY
        } else {
            rustix::process::getuid().as_raw()
        },
        8,
        1,
        "",
    ) else {
        return;
    };
    let pid = target.program.pid().to_string();
    let output = support::output(&mut ordinary(&socket, &["attach", &pid]));
    let heard = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{heard}");
    for way in ways {
        assert!(heard.contains(way), "{way}: {heard}");
    }
    // Verbs that need no privileges still work.
    let output = support::output(&mut ordinary(
        &socket,
        &["attach", "--dry-run", "--pages", "resident", &pid],
    ));
    assert!(output.status.success(), "{}", text(&output.stderr));
    target.check_bytes();
    let checked = support::output(&mut ordinary(&socket, &["check", "--json", "user-service"]));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked["capabilities"][0]["verdict"], "no");
    if !is_root() {
        return skip("root", "only root can start a daemon for another user");
    }
    // The daemon refuses a user that is not allowed.
    machine.write("superhue.toml", &ALLOWED.replace("65534", "64123"));
    let _daemon = machine.start();
    let socket = served(&machine);
    let output = support::output(&mut ordinary(&socket, &["run", "--", "true"]));
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains("does not allow user 65534"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_daemon_that_ends_or_hangs_disturbs_no_command() {
    if !may_serve() || !support::collapse_works() {
        return;
    }
    let Some(python) = python() else { return };
    let machine = Machine::new(ALLOWED);
    let mut daemon = machine.start();
    let socket = served(&machine);
    let pages = ["run", "--quiet", "--pages", "resident", "--", python, "-c"];
    let twice = format!(
        "{FILLING}\nimport sys\nfirst = fill(64)\nprint('filled', flush=True)\nsys.stdin.readline()\n{}\nassert whole(first)",
        until_huge(64).replace("64 << 10", "128 << 10")
    );
    let mut command = ordinary(&socket, &pages);
    command
        .arg(&twice)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut running = ChildGuard::start(&mut command);
    let mut output = BufReader::new(running.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let [_worker] = until("the worker is there", || workers(&daemon).try_into().ok());
    daemon.signal(Signal::KILL);
    daemon.wait();
    let mut daemon = machine.start();
    let again = daemon.pid();
    machine.status(|status| status["pid"] == again && status["users"]["socket"].is_string());
    running.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "True\n", "the new daemon goes on");
    assert!(running.wait().success());
    // The daemon hangs: the command runs all the same.
    daemon.signal(Signal::STOP);
    let output = support::output(&mut ordinary(&socket, &["run", "--", "echo", "out"]));
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), "out\n");
    assert!(
        text(&output.stderr).contains("has not answered"),
        "{}",
        text(&output.stderr)
    );
    daemon.signal(Signal::CONT);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}

#[test]
fn a_daemon_that_cannot_become_its_users_says_so_and_goes_on() {
    let machine = Machine::new(ALLOWED);
    let mut command = machine.command(&["daemon", "--config"]);
    command
        .arg(machine.at("etc"))
        .stderr(fs::File::create(machine.at("log")).unwrap());
    User::Ordinary.run(&mut command);
    fs::create_dir(machine.at("run")).unwrap();
    fs::set_permissions(machine.at("run"), fs::Permissions::from_mode(0o755)).unwrap();
    if is_root() {
        chown(machine.at("run"), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let _daemon = ChildGuard::start(&mut command);
    let status = machine.status(|status| status["users"]["error"].is_string());
    let error = status["users"]["error"].as_str().unwrap();
    assert!(error.contains("CAP_SETUID"), "{error}");
    assert_eq!(status["users"]["socket"], Value::Null);
    let heard = text(&machine.ctl(&["status"]).stdout);
    assert!(heard.contains("users are not served without"), "{heard}");
    assert!(!machine.at("run/users.sock").exists());
}

#[test]
fn an_actuator_that_nobody_has_asked_for_does_nothing() {
    let terms = "{\"budget\":{\"bytes\":1},\"rate\":null}";
    let parent = std::process::id().to_string();
    let arguments = ["actuator", "--terms", terms, "--parent", &parent];
    let output = support::superhue(User::Same, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("standard input is no socket"));
    // On a socket pair of the test's own: root is not served, and other users gain no rights.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = support::superhue(User::Same, &arguments);
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let heard = refusal(ours);
    assert!(heard.contains("the daemon cannot act for you"), "{heard}");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
}
