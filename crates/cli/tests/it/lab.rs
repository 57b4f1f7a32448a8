//! `superhue lab` from the command line: the figures it makes, keeps and refuses.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self, ChildGuard, User, copy_program, folder, output, send, skip, state, superhue, text, until,
};

fn lab(arguments: &[&str]) -> Output {
    output(&mut superhue(User::Same, &[&["lab"], arguments].concat()))
}

/// Fails unless superhue exits with `status`, prints nothing, and prints an error with these words.
#[track_caller]
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let said = lab(arguments);
    let complaint = text(&said.stderr);
    assert_eq!(said.status.code(), Some(status), "{complaint}");
    for word in words {
        assert!(complaint.contains(word), "no `{word}` in: {complaint}");
    }
    assert_eq!(text(&said.stdout), "");
}

#[test]
fn figures_are_kept_as_they_are_done() {
    let folder = folder();
    let out = folder.path().join("lab");
    let out = out.to_str().unwrap();
    let arguments = [
        "p0-celeron",
        "p1-rule",
        "--quick",
        "--drawn",
        "-n",
        "2",
        "--json",
        "--output",
        out,
    ];
    let said = lab(&arguments);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let kept = fs::read_to_string(format!("{out}/lab.json")).unwrap();
    assert_eq!(kept, text(&said.stdout));
    let document: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(document["figures"].as_array().unwrap().len(), 2);
    for name in ["p0-celeron", "p1-rule"] {
        let picture = fs::read_to_string(format!("{out}/{name}.svg")).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("modelled"));
    }
    // The page needs all figures.
    assert!(!fs::exists(format!("{out}/README.md")).unwrap());
    assert_eq!(text(&lab(&arguments).stdout), kept);
    let picture = format!("{out}/p0-celeron.svg");
    let drawn = fs::read(&picture).unwrap();
    fs::remove_file(&picture).unwrap();
    let json = format!("{out}/lab.json");
    let said = lab(&["--from", &json, "--output", out, "--json"]);
    assert_eq!(text(&said.stdout), kept);
    assert_eq!(fs::read(&picture).unwrap(), drawn);
    fs::write(&json, kept.replacen("p1-rule", "../../x", 1)).unwrap();
    refused(&["--from", &json, "--output", out], 1, &[&json, "../../x"]);
    fs::write(&json, kept.replacen("superhue-lab/1", "superhue-lab/9", 1)).unwrap();
    refused(&["--from", &json], 1, &["superhue-lab/9"]);
}

#[test]
fn nonsense_is_refused() {
    refused(&["p9-nothing"], 2, &["p9-nothing", "--list"]);
    refused(&["--machine", "zen"], 2, &["FIGURE"]);
    refused(&["p0-celeron", "--", "true"], 2, &["COMMAND"]);
    refused(&["--references", "5M"], 2, &["COMMAND"]);
    refused(
        &["--references", "many", "--", "true"],
        2,
        &["many", "200M"],
    );
    refused(
        &["--references", "0", "--", "true"],
        2,
        &["fewer than 1000"],
    );
    refused(
        &["p1-pairs", "--machine", "celeron-900", "--drawn"],
        2,
        &["two cores"],
    );
    refused(
        &["p0-celeron", "--machine", "/nonexistent.toml"],
        1,
        &["/nonexistent.toml", "--list"],
    );
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let machine = path("mine.toml");
    fs::write(&machine, "name = \"x\"\ncores = \"many\"\n").unwrap();
    refused(
        &["p0-celeron", "--machine", &machine],
        2,
        &["mine.toml:2: cores:"],
    );
    let frames = path("unpatched-aged-base.frames");
    fs::write(&frames, "superhue-frames/1 off,aged,base\ndraw small 1 0\n").unwrap();
    let here = folder.path().to_str().unwrap();
    refused(
        &["p0-celeron", "--frames", here],
        1,
        &[&frames, "died", "kernel/frames"],
    );
    refused(
        &["--witness", here],
        1,
        &["unpatched-aged-base.counts", "witness/run"],
    );
    refused(&["p0-celeron", "--witness", here], 2, &["--witness"]);
    // A file where the folder should be.
    refused(
        &["p0-celeron", "--drawn", "--output", &frames],
        1,
        &[&frames],
    );
}

/// Returns the lines of a page that the lab writes: not those of `scripts/papers`, nor empty ones around them.
fn of_the_lab(page: &str) -> Vec<&str> {
    let mut inside = false;
    let lines = page.lines().filter(|line| {
        inside |= *line == "<!-- scripts/papers -->";
        let counts = !inside && !line.is_empty();
        inside &= *line != "<!-- end -->";
        counts
    });
    lines.collect()
}

#[test]
fn the_kept_page_says_what_the_kept_results_say() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab");
    let page = fs::read_to_string(format!("{kept}/README.md")).unwrap();
    let folder = folder();
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");
    let document = format!("{kept}/lab.json");
    // It reads this one in the folder that it writes to.
    let witness = "witness.json";
    fs::copy(format!("{kept}/{witness}"), folder.path().join(witness)).unwrap();
    let output = folder.path().to_str().unwrap();
    let said = lab(&[
        "--from",
        &document,
        "--results",
        results,
        "--output",
        output,
    ]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let made = fs::read_to_string(folder.path().join("README.md")).unwrap();
    assert_eq!(
        of_the_lab(&made),
        of_the_lab(&page),
        "make it anew: superhue lab --from docs/lab/lab.json --output docs/lab, then scripts/papers table"
    );
    // Words and conclusions of the kept results, and all pictures, are those of this version.
    let mut files: Vec<String> = fs::read_dir(kept)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| fs::exists(folder.path().join(name)).unwrap() && name != "README.md")
        .collect();
    files.sort_unstable();
    assert!(files.len() >= 16, "{files:?}");
    for name in files {
        let [made, kept] = [folder.path(), Path::new(kept)]
            .map(|folder| fs::read_to_string(folder.join(&name)).unwrap());
        assert!(made == kept, "{name} is of another version");
    }
}

#[test]
fn the_list_has_figures_and_machines() {
    let said = text(&lab(&["--list"]).stdout);
    for words in ["p0-celeron", "P0 table 2", "p3-stride", "zen", "core2-duo"] {
        assert!(said.contains(words), "{words}");
    }
}

/// Returns the path of the built plugin; `None`, with a visible skip, where programs cannot be traced.
fn plugin() -> Option<String> {
    static PLUGIN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let build = || {
        let emulator = Command::new("qemu-x86_64").arg("-help").output();
        let takes = emulator.is_ok_and(|said| text(&said.stdout).contains("-plugin"));
        if !takes {
            let why = "no qemu-x86_64 that takes plugins (Debian 12: qemu-user)";
            skip("lab-trace", why);
            return None;
        }
        let name = format!(
            "superhue-tests-{}/trace.so",
            rustix::process::geteuid().as_raw()
        );
        let out = std::env::temp_dir().join(name);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../witness/trace");
        let built = output(Command::new(script).arg(&out));
        assert!(built.status.success(), "{}", text(&built.stderr));
        Some(out.to_str().unwrap().to_owned())
    };
    PLUGIN.get_or_init(build).clone()
}

/// An installed command finds its own plugin, whatever the current folder is; a plugin in the current folder may be another user's.
#[test]
fn an_installed_command_has_its_plugin_beside_it() {
    let Some(built) = plugin() else { return };
    let prefix = folder();
    let path = |name: &str| prefix.path().join(name);
    let (bin, lib) = (path("bin"), path("lib/superhue"));
    for folder in [&bin, &lib, &path("elsewhere/lib/superhue")] {
        fs::create_dir_all(folder).unwrap();
    }
    let command = bin.join("superhue");
    copy_program(env!("CARGO_BIN_EXE_superhue").as_ref(), &command);
    fs::copy(&built, path("elsewhere/lib/superhue/trace.so")).unwrap();
    let words = ["lab", "--machine", "celeron-900", "-n", "1", "--", "true"];
    let run = || {
        let mut command = Command::new(&command);
        output(command.args(words).current_dir(path("elsewhere")))
    };
    let said = run();
    let complaint = text(&said.stderr);
    assert_eq!(said.status.code(), Some(3), "{complaint}");
    let wanted = lib.join("trace.so");
    for word in [wanted.to_str().unwrap(), "make lab-trace", "--plugin"] {
        assert!(complaint.contains(word), "no `{word}` in: {complaint}");
    }
    fs::copy(&built, &wanted).unwrap();
    let said = run();
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(text(&said.stdout).contains("Coloring would"));
}

/// Returns a prediction as JSON, and the command's standard output and error.
#[track_caller]
fn predicted(options: &[&str], command: &[&str]) -> Option<(Value, String, String)> {
    let plugin = plugin()?;
    let folder = folder();
    let out = folder.path().join("out");
    let base = [
        "--plugin",
        &plugin,
        "-n",
        "2",
        "--output",
        out.to_str().unwrap(),
    ];
    let said = lab(&[&base, options, &["--"], command].concat());
    let errors = text(&said.stderr);
    assert!(said.status.success(), "{errors}");
    let kept = fs::read_to_string(out.join("lab.json")).unwrap();
    let picture = fs::read_to_string(out.join("program.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("modelled"));
    let here = options.is_empty() || options.contains(&"here");
    assert_eq!(out.join("machine.toml").exists(), here);
    if here {
        // The file is a machine file like any other.
        let again = lab(&[
            "p1-rule",
            "--quick",
            "--drawn",
            "-n",
            "1",
            "--machine",
            out.join("machine.toml").to_str().unwrap(),
        ]);
        assert!(
            !text(&again.stderr).contains("machine.toml:"),
            "{}",
            text(&again.stderr)
        );
    }
    Some((
        serde_json::from_str(&kept).unwrap(),
        text(&said.stdout),
        errors,
    ))
}

fn arm<'a>(document: &'a Value, name: &str) -> &'a Value {
    let arms = document["figures"][0]["points"][0]["arms"]
        .as_array()
        .unwrap();
    arms.iter().find(|arm| arm["arm"] == name).unwrap()
}

/// Compiles a C program, whose loops are known.
fn compiled(name: &str, source: &str) -> Option<String> {
    let program = support::compiled(name, source)?;
    Some(program.to_str().unwrap().to_owned())
}

/// 96 KiB of the Celeron's 128 again and again, and 64 MiB a page at a time: coloring saves nearly all misses of the
/// first, and huge pages nearly all walks of the second.
#[test]
fn a_program_is_predicted_as_its_loops_are() {
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        int main(int count, char **words) {
            int far = count > 1 && !strcmp(words[1], "far");
            size_t size = far ? 64 << 20 : 96 << 10, step = far ? 4096 + 64 : 32;
            volatile char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (int pass = 0; pass < (far ? 30 : 200); pass++)
                for (size_t byte = 0; byte < size; byte += step)
                    at[byte]++;
            puts("the end");
            fputs("an error\n", stderr);
            return 7;
        }"#;
    let Some(program) = compiled("lab-loops", source) else {
        return;
    };
    let machine = ["--machine", "celeron-900"];
    let Some((near, out, errors)) = predicted(&machine, &[&program]) else {
        return;
    };
    assert!(
        out.starts_with("the end\n") && errors.contains("an error\n"),
        "{out}{errors}"
    );
    assert!(
        out.contains("Coloring would save") && out.contains("exit status 7"),
        "{out}"
    );
    let traced = &near["figures"][0]["points"][0]["traced"];
    assert_eq!(traced["status"], 7);
    // Each byte of each pass, and the accesses of the loader.
    let references = traced["references"].as_u64().unwrap();
    let loops = 200 * (96 << 10) / 32 * 2;
    assert!(
        (loops..loops + 400_000).contains(&references),
        "{references}"
    );
    let misses = |name: &str| arm(&near, name)["misses"]["median"].as_f64().unwrap();
    assert!(
        misses("colored") * 4.0 < misses("random"),
        "{} {}",
        misses("colored"),
        misses("random")
    );
    let (far, ..) = predicted(&machine, &[&program, "far"]).unwrap();
    let walks = |name: &str| arm(&far, name)["walks"]["median"].as_f64().unwrap();
    assert!(
        walks("random") > 200.0 && walks("superpages") * 3.0 < walks("random"),
        "{} {}",
        walks("random"),
        walks("superpages")
    );
    let huge = far["figures"][0]["points"][0]["traced"]["superpage_bytes"]
        .as_u64()
        .unwrap();
    assert!((56 << 20..=64 << 20).contains(&huge), "{huge}");
    // Only the seed decides what is random.
    let (again, ..) = predicted(&machine, &[&program]).unwrap();
    assert_eq!(again, near);
}

#[test]
fn a_figure_for_this_machine_names_what_is_assumed() {
    let figure = ["p1-rule", "--quick", "--drawn", "-n", "1", "--json"];
    let done = lab(&[&figure[..], &["--machine", "here"][..]].concat());
    let errors = text(&done.stderr);
    if errors.contains("cannot describe this machine") {
        skip("cache-sizes", &errors);
        return;
    }
    assert!(done.status.success(), "{errors}");
    let document: Value = serde_json::from_str(&text(&done.stdout)).unwrap();
    let left_out = document["figures"][0]["not_modelled"].to_string();
    assert!(left_out.contains("are assumptions"), "{left_out}");
}

#[test]
fn a_prediction_fits_its_schema_and_is_shown_again() {
    let Some((document, ..)) =
        predicted(&["--machine", "here", "--references", "200k"], &["ls", "/"])
    else {
        return;
    };
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas/lab.schema.json");
    let schema = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let complaints: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| error.to_string())
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let folder = folder();
    let kept = folder.path().join("kept.json");
    fs::write(&kept, document.to_string()).unwrap();
    let said = lab(&["--from", kept.to_str().unwrap(), "--json"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&said.stdout).unwrap(),
        document
    );
}

#[test]
fn commands_that_cannot_be_traced_are_refused() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // Without an emulator on the PATH, the error names its package.
    let mut without = superhue(User::Same, &["lab", "--", "true"]);
    let said = output(without.env("PATH", folder.path()));
    assert_eq!(said.status.code(), Some(3));
    assert!(
        text(&said.stderr).contains("qemu-user"),
        "{}",
        text(&said.stderr)
    );
    let Some(plugin) = plugin() else { return };
    let base = ["--plugin", &plugin];
    let refused = |command: &[&str], status: i32, words: &[&str]| {
        refused(&[&base, command].concat(), status, words);
    };
    refused(
        &["--", "/nonexistent/program"],
        127,
        &["/nonexistent/program"],
    );
    let text_file = path("text");
    fs::write(&text_file, "nothing\n").unwrap();
    refused(&["--", &text_file], 126, &[&text_file, "executed"]);
    refused(
        &["--machine", "/nonexistent.toml", "--", "true"],
        1,
        &["/nonexistent.toml", "--list"],
    );
    let machine = path("mine.toml");
    fs::write(&machine, "name = \"x\"\ncores = \"many\"\n").unwrap();
    refused(
        &["--machine", &machine, "--", "true"],
        2,
        &["mine.toml:2: cores:"],
    );
    refused(
        &["--skip", "1G", "--", "true"],
        1,
        &["too few", "exit status 0"],
    );
    self::refused(
        &["--plugin", &path("trace.so"), "--", "true"],
        3,
        &["make lab-trace"],
    );
    // QEMU would take the file of that name with .so appended.
    self::refused(
        &["--plugin", &path(""), "--", "true"],
        3,
        &["make lab-trace"],
    );
    // A file that is no plugin of ours.
    self::refused(
        &["--plugin", &text_file, "--", "true"],
        1,
        &["before the program began"],
    );
}

#[test]
fn what_is_bounded_ends_and_threads_and_children_are_told() {
    let endless = compiled(
        "lab-endless",
        "int main(void) { for (volatile int i = 0;; i++); }",
    );
    let Some(endless) = endless else { return };
    let machine = ["--machine", "celeron-900"];
    let ended = |options: &[&str], command: &[&str]| -> Option<String> {
        let (document, ..) = predicted(&[&machine, options].concat(), command)?;
        Some(document["figures"][0]["verdict"].to_string())
    };
    let Some(said) = ended(&["--references", "300k"], &[&endless]) else {
        return;
    };
    assert!(
        said.contains("ended by superhue after 300000 references"),
        "{said}"
    );
    // On a busy machine the emulator may need some seconds to start.
    let said = ended(&["--for", "5s"], &[&endless]).unwrap();
    assert!(said.contains("when the time was over"), "{said}");
    // The program ignores SIGTERM, and is killed.
    let deaf = compiled(
        "lab-deaf",
        "#include <signal.h>\nint main(void) { signal(SIGTERM, SIG_IGN); for (volatile int i = 0;; i++); }",
    );
    let said = ended(&["--references", "300k"], &[&deaf.unwrap()]).unwrap();
    assert!(said.contains("ended by superhue"), "{said}");
    // So is a process that it started.
    let parent = compiled(
        "lab-parent",
        "#include <signal.h>\n#include <stdio.h>\n#include <unistd.h>\n\
         int main(void) { signal(SIGTERM, SIG_IGN); int child = fork();\n\
         if (child) { printf(\"%d\\n\", child); fflush(stdout); } for (volatile int i = 0;; i++); }",
    );
    let bounded = [&machine[..], &["--references", "300k"]].concat();
    let (_, out, _) = predicted(&bounded, &[&parent.unwrap()]).unwrap();
    let child: u32 = out.lines().next().unwrap().parse().unwrap();
    until("the child is gone", || {
        matches!(state(child), None | Some('Z')).then_some(())
    });
    let threads = compiled(
        "lab-threads",
        "#include <pthread.h>\n#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
         static void *work(void *own) { for (volatile int i = 0; i < 100000; i++); return own; }\n\
         int main(void) { pthread_t t[3]; for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, work, 0);\n\
         for (int i = 0; i < 3; i++) pthread_join(t[i], 0);\n\
         if (!fork()) { for (int i = 3; i < 1000; i++) close(i); work(0); _exit(0); } wait(0); return system(\"true\"); }",
    );
    let said = ended(&[], &[&threads.unwrap()]).unwrap();
    assert!(
        said.contains("Its 4 threads") && said.contains("started 2 processes"),
        "{said}"
    );
    let said = ended(&[], &["sh", "-c", "exec sleep 0"]).unwrap();
    assert!(said.contains("took its place"), "{said}");
}

/// Returns the emulator that runs the program: other instances only print their version.
fn emulator_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = children
        .split_whitespace()
        .filter_map(|child| child.parse().ok());
    children.find(|child: &u32| {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|word| word == b"-plugin")
    })
}

/// Returns the CPU time of a process in user mode, in hundredths of a second.
fn busy(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    fields.split(' ').nth(11).unwrap().parse().unwrap()
}

#[test]
fn an_interrupted_prediction_tells_what_there_is() {
    let Some(plugin) = plugin() else { return };
    let endless = compiled(
        "lab-endless-too",
        "int main(void) { for (volatile int i = 0;; i++); }",
    );
    let Some(endless) = endless else { return };
    let folder = folder();
    let out = folder.path().join("out.txt");
    let mut command = superhue(
        User::Same,
        &[
            "lab",
            "--machine",
            "celeron-900",
            "-n",
            "1",
            "--references",
            "1000G",
            "--plugin",
            &plugin,
            "--",
            &endless,
        ],
    );
    command.stdout(fs::File::create(&out).unwrap());
    let mut running = ChildGuard::start(&mut command);
    let emulator = until("the program runs", || emulator_of(running.pid()));
    until("it is seen", || (busy(emulator) > 50).then_some(()));
    running.signal(Signal::INT);
    assert!(running.wait().success());
    let said = fs::read_to_string(&out).unwrap();
    assert!(
        said.contains("was interrupted") && said.contains("Coloring would"),
        "{said}"
    );
    assert!(!support::lives(emulator), "the program goes on");
    // If superhue itself is killed, the program continues, unobserved.
    let mut running = ChildGuard::start(&mut command);
    let emulator = until("the program runs", || emulator_of(running.pid()));
    until("it is seen", || (busy(emulator) > 50).then_some(()));
    running.signal(Signal::KILL);
    let _ = running.wait();
    let before = busy(emulator);
    until("the program goes on", || {
        (busy(emulator) > before + 10).then_some(())
    });
    send(emulator, Signal::KILL);
}
