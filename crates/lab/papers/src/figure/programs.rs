//! Whole programs instead of loops: stand-ins for SPEC CPU2000, which is not free. P3 figures 12 and 13.
//!
//! Programs of Debian stand in for those of CINT2000, and run under the emulator on small inputs that are made here;
//! loops of `workload/stencil.rs` stand in for those of CFP2000. Both are replayed in the same way
//! ([`crate::program`]).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use superhue_cachesim::{Machine, Random};

use super::{LEFT_OUT, Outcome, Replayed, Settings, not_modelled, result};
use crate::ReplayError;
use crate::arm::Arm;
use crate::document::{Figure, Point, Spread, TraceReport};
use crate::memory::Memory;
use crate::number::number;
use crate::program::{self, Emulator, Plan, Replays, Watcher, mapped, word};
use crate::workload::{Sink, Stencil};

/// References of each program, and with `--quick`.
const REFERENCES: u64 = 50_000_000;
const FEW_REFERENCES: u64 = 10_000_000;
/// Address of the arrays of loops: a page behind a boundary, as `mmap` puts them.
const ARRAYS: u64 = 0x7f00_0000_1000;

/// Program that stands in for another one.
struct StandIn {
    name: &'static str,
    /// The program that it stands in for.
    of: &'static str,
    /// The package of Debian that has it.
    package: &'static str,
    /// Command line of the program; the first word is a program on the path, `cc1` is the compiler proper of `gcc`.
    command: &'static [&'static str],
    input: Option<&'static str>,
    /// Command that prints its version.
    version: &'static [&'static str],
}

const STAND_INS: [StandIn; 6] = [
    StandIn {
        name: "gzip",
        of: "164.gzip",
        package: "gzip",
        command: &["gzip", "-9", "-n", "-c", "text"],
        input: None,
        version: &["gzip", "--version"],
    },
    StandIn {
        name: "bzip2",
        of: "256.bzip2",
        package: "bzip2",
        command: &["bzip2", "-9", "-c", "text"],
        input: None,
        version: &["bzip2", "--help"],
    },
    StandIn {
        name: "gcc",
        of: "176.gcc",
        package: "gcc",
        command: &["cc1", "-quiet", "-O2", "source.c", "-o", "source.s"],
        input: None,
        version: &["gcc", "--version"],
    },
    StandIn {
        name: "perl",
        of: "253.perlbmk",
        package: "perl",
        command: &["perl", "words.pl", "text"],
        input: None,
        version: &["perl", "-e", "print \"perl $^V\\n\""],
    },
    StandIn {
        name: "link-grammar",
        of: "197.parser",
        package: "link-grammar",
        command: &["link-parser", "en", "-verbosity=1"],
        input: Some("sentences"),
        version: &["link-parser", "--version"],
    },
    StandIn {
        // GNU Chess has threads, which run in a different order each time. 18: 3 MiB for positions already seen. The
        // default of 96 MiB would make all replayed references those that clear it.
        name: "fairymax",
        of: "186.crafty",
        package: "fairymax",
        command: &["fairymax", "18"],
        input: Some("moves"),
        version: &["dpkg-query", "-W", "-f", "fairymax ${Version}", "fairymax"],
    },
];

pub(super) fn tell_pentium4(machine: &Machine, mut replayed: Replayed) -> Figure {
    // The text of the paper has a number for parser only.
    replayed.enter_paper(|point, arm| {
        let of = STAND_INS.iter().find(|it| it.name == point.label)?.of;
        let is_told = of == "197.parser" && arm == "superpages" && has_superpages(point);
        is_told.then_some(1.05)
    });
    figure("p3-programs", "P3 figures 12 and 13", machine, replayed)
}

pub(super) fn tell_celeron(machine: &Machine, replayed: Replayed) -> Figure {
    let paper = "P3 figures 12 and 13, which are of the Pentium 4";
    figure("p3-programs-celeron", paper, machine, replayed)
}

/// Returns true if huge pages fitted into the memory of a point's program.
fn has_superpages(point: &Point) -> bool {
    (point.traced.as_ref()).is_none_or(|traced| traced.superpage_bytes > 0)
}

pub(super) fn replayed(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let plan = Plan {
        machine: machine.clone(),
        skip: 0,
        references: if settings.quick {
            FEW_REFERENCES
        } else {
            REFERENCES
        },
        time: None,
        draws: settings.draws.unwrap_or(if settings.quick {
            program::FEW_DRAWS
        } else {
            program::DRAWS
        }),
        seed: memory.seed(),
    };
    let mut points = Vec::new();
    let mut left_out = Vec::new();
    match Emulator::find(&settings.plugin) {
        Ok(emulator) => {
            let inputs = Inputs::made(memory)?;
            for stand_in in &STAND_INS {
                match ran(stand_in, &emulator, &plan, &inputs.0) {
                    Ok(point) => points.push(point),
                    Err(why) => {
                        left_out.push(format!("{} ({}): {why}", stand_in.name, stand_in.of))
                    }
                }
            }
        }
        Err(error) => left_out.push(format!("all programs of Debian: {error}")),
    }
    for stencil in Stencil::ALL {
        points.push(looped(stencil, &plan)?);
    }
    Ok(Replayed {
        left_out,
        ..points.into()
    })
}

fn figure(name: &str, paper: &str, machine: &Machine, replayed: Replayed) -> Figure {
    let Replayed {
        points, left_out, ..
    } = replayed;
    let arms = points.iter().flat_map(|point| &point.arms);
    let references = arms.map(|arm| arm.references).max().unwrap_or(0);
    let verdict = verdict(&points, machine, &left_out);
    let mut losing: Vec<String> = points.iter().filter_map(lost).collect();
    if losing.is_empty() {
        let none = "coloring and superpages lose nowhere more than 1 % of the median.";
        losing.push(none.to_owned());
    }
    let mut versions = String::new();
    for traced in points.iter().filter_map(|point| point.traced.as_ref()) {
        let version = traced
            .program
            .as_deref()
            .unwrap_or("of a version that it does not tell");
        let _ = write!(versions, "; {version}");
    }
    Figure {
        name: name.to_owned(),
        title: format!("Stand-ins for SPEC CPU2000: {}", machine.name),
        paper: paper.to_owned(),
        says: vec![
            "Section 5.2: by superpages 197.parser gains about 5 %, and the other programs of CINT2000 are much the same.".to_owned(),
            "168.wupwise and 301.apsi gain, and some more when memory is aligned to 4 MB. (The figures' numbers are not in the text.)".to_owned(),
        ],
        machine: machine.name.clone(),
        cache: None,
        workload: format!(
            "the first {} million references of programs of Debian 12 on inputs made from the seed (gzip, bzip2, gcc's cc1, perl; link-grammar for parser, fairymax for crafty), \
             run under an emulator, and of loops like those of swim, tomcatv, wupwise, apsi; drawn placements{versions}",
            references / 1_000_000
        ),
        axis: "program".to_owned(),
        value: "speed beside any frames, modelled".to_owned(),
        higher_is_better: true,
        points,
        verdict,
        losing,
        not_modelled: not_modelled(&[
            "The programs of SPEC themselves: these are other programs, other inputs and other compilers, so only the kind of answer can be compared. \
             The paper has speed of a whole machine, with arithmetic; here it is misses, and modelled time of references alone.",
            "Placement by a real kernel: frames are drawn. Superpages are as large as the machine's own (4 MiB).",
        ]),
    }
}

/// Inputs of the programs, in a folder that dropping this value removes.
struct Inputs(PathBuf);

impl Inputs {
    fn made(memory: &Memory) -> Result<Self, ReplayError> {
        let trouble = |error: std::io::Error| {
            ReplayError(format!(
                "cannot write inputs of programs into the temporary folder: {error}"
            ))
        };
        // The name has the same length in each run, since programs read it.
        let name = format!("superhue-lab-{:010}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // Fails if the folder exists: another user may have made it.
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(trouble)?;
        let inputs = Self(folder);
        for (file, text) in [
            ("text", text(&mut memory.random("programs/text", 0))),
            ("source.c", source(&mut memory.random("programs/source", 0))),
            (
                "sentences",
                sentences(&mut memory.random("programs/sentences", 0)),
            ),
            ("words.pl", WORDS.to_owned()),
            ("moves", MOVES.to_owned()),
        ] {
            fs::write(inputs.0.join(file), text).map_err(trouble)?;
        }
        Ok(inputs)
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes words of an invented language in lines, frequent words first in the list: 2 MiB.
fn text(random: &mut Random) -> String {
    let letters: Vec<char> = "eeetaoinshrdlucmfwypvbgk".chars().collect();
    let word = |random: &mut Random| -> String {
        let length = 2 + random.below(4) + random.below(5);
        (0..length)
            .map(|_| letters[random.below(letters.len() as u64) as usize])
            .collect()
    };
    let words: Vec<String> = (0..6000).map(|_| word(random)).collect();
    let mut text = String::new();
    while text.len() < 2 << 20 {
        // Words at the beginning of the list are more frequent.
        let at = random.below(6000) * random.below(6000) / 6000 * random.below(6000) / 6000;
        text.push_str(&words[at as usize]);
        text.push_str(match random.below(12) {
            0 => ".\n",
            1 => ", ",
            _ => " ",
        });
    }
    text
}

/// Writes functions in C, enough for some hundred million references of a compiler.
fn source(random: &mut Random) -> String {
    let mut text = String::from("struct node { struct node *next; long key, value[4]; };\n");
    for number in 0..400 {
        let _ = write!(
            text,
            "long f{number}(struct node *list, long a, long b)\n{{\n\tlong sum = {};\n\tfor (; list; list = list->next) {{\n\t\tswitch (list->key & 7) {{\n",
            random.below(1000)
        );
        for case in 0..8 {
            let (one, other) = (random.below(4), random.below(4));
            let _ = writeln!(
                text,
                "\t\tcase {case}: sum {}= list->value[{one}] {} (a {} {}) + list->value[{other}]; break;",
                ["+", "-", "^", "|"][random.below(4) as usize],
                ["+", "*", "&", "-"][random.below(4) as usize],
                ["<<", ">>", "+", "*"][random.below(4) as usize],
                1 + random.below(30)
            );
        }
        let called = if number > 0 { random.below(number) } else { 0 };
        let call = if number > 0 {
            format!("f{called}(list->next, b, sum)")
        } else {
            "b".to_owned()
        };
        let _ = writeln!(
            text,
            "\t\t}}\n\t\tif (sum > a * {})\n\t\t\tsum -= {call};\n\t}}\n\treturn sum;\n}}",
            2 + random.below(50)
        );
    }
    text
}

/// Writes simple English sentences.
fn sentences(random: &mut Random) -> String {
    let pick =
        |random: &mut Random, of: &[&str]| of[random.below(of.len() as u64) as usize].to_owned();
    let thing = |random: &mut Random| {
        let article = pick(random, &["the", "a", "every", "this"]);
        let kind = pick(random, &["old", "small", "happy", "green", "new", "quiet"]);
        let noun = pick(
            random,
            &[
                "dog", "house", "teacher", "river", "letter", "child", "doctor", "garden",
            ],
        );
        format!("{article} {kind} {noun}")
    };
    let mut text = String::new();
    for _ in 0..200 {
        let (one, two, three) = (thing(random), thing(random), thing(random));
        let verb = pick(random, &["saw", "found", "liked", "remembered", "visited"]);
        let link = pick(random, &["near", "behind", "with", "before"]);
        let clause = pick(
            random,
            &[
                "which was very large",
                "that nobody wanted",
                "because it was late",
            ],
        );
        let sentence = format!("{one} {verb} {two} {clause} {link} {three}.");
        let mut letters = sentence.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        text.extend(first.into_iter().chain(letters));
        text.push('\n');
    }
    text
}

/// Counts words, and sorts them by number.
const WORDS: &str = "my %count;\nwhile (<>) {\n    $count{lc $1}++ while /([a-z]+)/gi;\n}\n\
                     my $n = 0;\nfor my $word (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count) {\n    \
                     printf \"%6d %s\\n\", $count{$word}, $word;\n    last if ++$n == 1000;\n}\n";

/// Game by the protocol of xboard: a fixed search depth without a limit of time, so the search is the same in each run.
const MOVES: &str = "xboard\nnew\nsd 8\nst 100000\ne2e4\nquit\n";

/// Watcher that never stops the run.
struct NullWatcher;

impl Watcher for NullWatcher {
    fn read(&mut self, _: u64) -> bool {
        false
    }
}

/// Gives the command a fixed environment, independent of the caller's.
fn plain(command: &mut Command, folder: &Path) {
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/games")
        .env("LC_ALL", "C.UTF-8")
        .env("PERL_HASH_SEED", "0")
        .env("HOME", "/nonexistent")
        .current_dir(folder)
        .stdin(Stdio::null());
}

fn first_line(words: &[&str], folder: &Path) -> Option<String> {
    let (name, arguments) = words.split_first()?;
    let mut command = Command::new(Path::new("/usr/bin").join(name));
    if !Path::new(command.get_program()).exists() {
        command = Command::new(Path::new("/usr/games").join(name));
    }
    command.args(arguments);
    plain(&mut command, folder);
    let said = command.output().ok()?;
    let all = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&all).into_owned();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(80).collect())
}

fn ran(
    stand_in: &StandIn,
    emulator: &Emulator,
    plan: &Plan,
    folder: &Path,
) -> Result<Point, String> {
    let (&name, arguments) = stand_in.command.split_first().ok_or("it has no words")?;
    let missing = || format!("it is not installed (apt-get install {})", stand_in.package);
    let program = if name == "cc1" {
        let path = first_line(&["gcc", "-print-prog-name=cc1"], folder).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    } else {
        let places = ["/usr/bin", "/usr/games"].map(|place| Path::new(place).join(name));
        places.into_iter().find(|path| path.exists())
    };
    let program = program.ok_or_else(missing)?;
    let input = match stand_in.input {
        Some(file) => {
            Stdio::from(File::open(folder.join(file)).map_err(|error| error.to_string())?)
        }
        None => Stdio::null(),
    };
    let arguments = arguments.iter().map(OsString::from);
    let command: Vec<OsString> = std::iter::once(program.into()).chain(arguments).collect();
    let set = |command: &mut Command| {
        plain(command, folder);
        command
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
    };
    let run = program::run(emulator, &command, plan, set, &mut NullWatcher)
        .map_err(|error| error.to_string())?;
    if run.traced.threads > 0 {
        return Err("it has threads, whose order is another in each run".to_owned());
    }
    if run.traced.executed > 0 {
        return Err("another program takes its place".to_owned());
    }
    let traced = TraceReport {
        program: first_line(stand_in.version, folder),
        ..run.traced
    };
    Ok(point(stand_in.name, run.bytes, &run.outcomes, Some(traced)))
}

/// Sink that writes references of a loop as words of a trace.
struct Words {
    words: Vec<u64>,
    replays: Replays,
    done: Result<bool, program::TraceError>,
}

impl Words {
    fn put(&mut self, at: u64, store: bool) {
        if self.done != Ok(false) {
            return;
        }
        self.words.push(word(ARRAYS + at, store));
        if self.words.len() >= 1 << 20 {
            self.done = self.replays.replay(&self.words);
            self.words.clear();
        }
    }
}

impl Sink for Words {
    fn load(&mut self, at: u64) {
        self.put(at, false);
    }

    fn store(&mut self, at: u64) {
        self.put(at, true);
    }
}

fn looped(stencil: Stencil, plan: &Plan) -> Result<Point, ReplayError> {
    let mut words = Words {
        words: mapped(ARRAYS, stencil.bytes().next_multiple_of(4096)).into(),
        replays: Replays::new(plan),
        done: Ok(false),
    };
    while words.done == Ok(false) {
        stencil.step(&mut words);
    }
    words
        .done
        .map_err(|error| ReplayError(format!("{}: {error}", stencil.name())))?;
    let [bytes, _] = words.replays.bytes();
    let outcomes = words.replays.outcomes();
    Ok(point(stencil.name(), bytes, &outcomes, None))
}

/// Makes a point whose value is speed relative to the median of any frames.
fn point(
    label: &str,
    bytes: u64,
    outcomes: &[(Arm, Vec<Outcome>)],
    traced: Option<TraceReport>,
) -> Point {
    let cycles =
        |mine: &[Outcome]| Spread::of(&mine.iter().map(|one| one.value).collect::<Vec<_>>()).median;
    let any = outcomes.iter().find(|(arm, _)| *arm == Arm::Random);
    let any = any.map_or(1.0, |(_, mine)| cycles(mine));
    let arms = outcomes.iter().map(|(arm, mine)| {
        let faster: Vec<Outcome> = mine
            .iter()
            .map(|one| Outcome {
                value: any / one.value,
                ..*one
            })
            .collect();
        result(*arm, &faster)
    });
    Point {
        label: label.to_owned(),
        bytes,
        arms: arms.collect(),
        traced,
    }
}

/// Misses, or walks, that an arm saves over any frames, in percent; `None` if any frames have less than 0.05 per 1,000
/// references.
fn removed(point: &Point, arm: Arm, of: fn(&crate::document::ArmResult) -> Spread) -> Option<f64> {
    let (before, after) = (
        of(point.arm("random")?).median,
        of(point.arm(arm.name())?).median,
    );
    (before >= 0.05).then(|| (1.0 - after / before) * 100.0)
}

fn verdict(points: &[Point], machine: &Machine, left_out: &[String]) -> Vec<String> {
    let list = |arm: Arm, of: fn(&crate::document::ArmResult) -> Spread| {
        let fits = |point: &&Point| arm != Arm::Superpages || has_superpages(point);
        let (with, without): (Vec<&Point>, Vec<&Point>) = points.iter().partition(fits);
        let each = with.iter().map(|point| match removed(point, arm, of) {
            // Avoids a share of -0.
            Some(share) => format!("{} {} %", point.label, share.round() as i64),
            None => format!("{} has none", point.label),
        });
        let mut text = each.collect::<Vec<_>>().join(", ");
        if !without.is_empty() {
            let labels: Vec<&str> = without.iter().map(|point| &*point.label).collect();
            let _ = write!(text, "; none fitted into {}", labels.join(", "));
        }
        text
    };
    let mut said = vec![
        format!(
            "Coloring takes away of the misses of the {}: {}.",
            machine.last().name,
            list(Arm::Colored, |arm| arm.misses)
        ),
        format!(
            "Superpages take away of the walks: {}.",
            list(Arm::Superpages, |arm| arm.walks)
        ),
    ];
    let speed = |label: &str| {
        let point = points.iter().find(|point| point.label == label)?;
        let arm = point.arm("superpages")?;
        Some(format!("{label} {}x", number(arm.value.median)))
    };
    let spoken: Vec<String> = ["link-grammar", "wupwise", "apsi"]
        .into_iter()
        .filter_map(speed)
        .collect();
    said.push(format!(
        "Modelled speed with superpages: {} (the paper: parser about 1.05x, wupwise and apsi some); an upper end, since arithmetic takes no time here.",
        spoken.join(", ")
    ));
    if !left_out.is_empty() {
        said.push(format!("{LEFT_OUT}{}.", left_out.join("; ")));
    }
    said
}

fn lost(point: &Point) -> Option<String> {
    let mut lost = Vec::new();
    for name in ["colored", "superpages", "both"] {
        let value = point.arm(name)?.value.median;
        if value < 0.99 {
            lost.push(format!("{name} {:.1} %", (value - 1.0) * 100.0));
        }
    }
    (!lost.is_empty()).then(|| format!("{}: {}.", point.label, lost.join(", ")))
}
