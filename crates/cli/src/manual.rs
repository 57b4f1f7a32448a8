//! Contents of manual pages beyond the definition of the command line: examples, files, exit status, other pages.
//!
//! The tests parse every example, so that none outlives an option, and every verb has one.

use clap::Command;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::args;

/// Contents of one page.
#[derive(Debug, Clone, Copy, Default)]
pub struct Page {
    /// Commands to try, each with its purpose.
    pub examples: &'static [(&'static str, &'static str)],
    /// Files, each with its meaning.
    pub files: &'static [(&'static str, &'static str)],
    /// Other pages, with their sections.
    pub see_also: &'static [(&'static str, u8)],
}

const RULES: &str = "/etc/superhue/superhue.toml";
const MORE_RULES: &str = "/etc/superhue/conf.d/*.toml";
const CTL_SOCKET: &str = superhue_daemon::ctl::DEFAULT_SOCKET;
const USERS_SOCKET: &str = superhue::act::DEFAULT_SOCKET;
const USERS_SOCKET_IS: &str = "Where the daemon acts for users without CAP_SYS_NICE, if its configuration allows them. The variable \
                               SUPERHUE_USERS_SOCKET names another path.";
const TRACK_SOCKET: &str = superhue_client::DEFAULT_SOCKET;
const PAUSED: &str = "/run/superhue/ctl.sock.paused";
const JOURNAL: &str = "/run/superhue/journal/";
const PALETTE: &str = "/run/superhue/palette";
const TLB: &str = "/var/cache/superhue/tlb.json";
const TLB_IS: &str = "The TLB as timing found it on this machine; for ordinary users superhue/tlb.json below $XDG_CACHE_HOME (~/.cache).";
const JOURNAL_IS: &str = "Changes that superhue-restore(1) undoes after a kill.";
const PALETTE_IS: &str = "Eviction sets that processes share, made when they are needed; those of ordinary users are below \
                          $XDG_RUNTIME_DIR.";

/// The page of a verb: `""` for `superhue` itself, `ctl-why` for `superhue ctl why`.
pub fn page(verb: &str) -> Page {
    match verb {
        "" => Page {
            examples: &[
                ("What this machine lets you do:", "superhue check"),
                (
                    "Run a command under the default policy, and report the result:",
                    "superhue run -- python3 -c 'bytearray(2**29).find(1)'",
                ),
                (
                    "Compare both ways in turns, with a confidence interval:",
                    "superhue compare -- python3 -c 'bytearray(2**29).find(1)'",
                ),
                ("The services that would gain:", "superhue advise"),
                (
                    "The effect on a running service:",
                    "superhue trial --unit redis-server",
                ),
                (
                    "A running service on huge pages, until Ctrl-C:",
                    "superhue attach --unit redis-server",
                ),
                (
                    "Services by rules, for as long as the machine runs; this checks the rules:",
                    "superhue daemon --check",
                ),
            ],
            files: &[(
                MORE_RULES,
                "Rules for services: superhue-daemon(1), superhue.toml(5).",
            )],
            see_also: &[
                ("superhue-check", 1),
                ("superhue-run", 1),
                ("superhue-compare", 1),
                ("superhue-daemon", 1),
                ("hps", 3),
                ("superhue_color", 3),
                ("madvise", 2),
            ],
        },
        "check" => Page {
            examples: &[
                ("What works here, and what does not:", "superhue check"),
                (
                    "Test collapses of other processes' memory; status 3 and a remedy if that fails:",
                    "superhue check remote-collapse",
                ),
                ("For another program:", "superhue check --json --thorough"),
                (
                    "The TLB by timing, whatever the processor reports:",
                    "superhue check --tlb measure",
                ),
            ],
            files: &[(TLB, TLB_IS)],
            ..Page::default()
        },
        "run" => Page {
            examples: &[
                (
                    "The default policy:",
                    "superhue run -- python3 -c 'bytearray(2**29).find(1)'",
                ),
                (
                    "At most 256 MiB more memory, and a report to keep:",
                    "superhue run --pages resident --budget 256M --report report.json -- redis-server --save ''",
                ),
                (
                    "What it would do, without a change of any page:",
                    "superhue run --dry-run -- redis-server --save ''",
                ),
                (
                    "Only a quarter of the L2 cache's colors, next to a program that has the others:",
                    "superhue run --colors 25% --swap -- tar cf /dev/null /usr",
                ),
            ],
            files: &[
                (JOURNAL, JOURNAL_IS),
                (PALETTE, PALETTE_IS),
                (USERS_SOCKET, USERS_SOCKET_IS),
            ],
            see_also: &[
                ("superhue-attach", 1),
                ("superhue-compare", 1),
                ("superhue-restore", 1),
            ],
        },
        "attach" => Page {
            examples: &[
                (
                    "What it would do with everything that you may look at, without a change of any page:",
                    "superhue attach --all --dry-run",
                ),
                (
                    "A service, for ten minutes, also over restarts:",
                    "superhue attach --unit redis-server --for 10m",
                ),
                (
                    "All processes of a name, until interrupted, with a report to keep:",
                    "superhue attach redis-server --report report.json",
                ),
            ],
            files: &[
                (JOURNAL, JOURNAL_IS),
                (PALETTE, PALETTE_IS),
                (USERS_SOCKET, USERS_SOCKET_IS),
            ],
            see_also: &[("superhue-run", 1), ("superhue-daemon", 1)],
        },
        "compare" => Page {
            examples: &[
                (
                    "The kernel's own policy against that of superhue run:",
                    "superhue compare -- python3 -c 'bytearray(2**29).find(1)'",
                ),
                (
                    "A server under a load that prints operations per second:",
                    "superhue compare --arm kernel --arm auto --ready tcp:6379 \
                     --load 'redis-benchmark -t get -n 1000000 --csv' --metric-regex 'ops=\"GET\",\"([0-9.]+)' -- redis-server --save ''",
                ),
                (
                    "A gate in continuous integration: status 4 if a loss of more than 2 % is shown:",
                    "superhue compare --arm kernel --arm auto --fail-if 'wall > 2%' --export-markdown table.md -- python3 -c 'bytearray(2**29).find(1)'",
                ),
                (
                    "At several sizes:",
                    "superhue compare --arm kernel --arm auto -L size 1,16,64 -- python3 -c 'bytearray({size} << 20).find(1)'",
                ),
                (
                    "Many programs, for half an hour; run it again to continue:",
                    "superhue compare --suite programs.toml --report result.json --for 30m",
                ),
            ],
            see_also: &[("superhue-run", 1), ("superhue-bench", 1)],
            ..Page::default()
        },
        "lab" => Page {
            examples: &[
                (
                    "Which figures and machines there are:",
                    "superhue lab --list",
                ),
                (
                    "A table of one paper beside ours:",
                    "superhue lab p0-celeron",
                ),
                (
                    "The same loop on another machine:",
                    "superhue lab p0-celeron --machine zen",
                ),
                (
                    "Everything, with pictures and a page:",
                    "superhue lab --quick --output lab",
                ),
                (
                    "Predict the cache and TLB misses of a program by the placement of its pages:",
                    "superhue lab --machine here -- ls -R /usr/share",
                ),
                (
                    "Without its start, and with the result kept:",
                    "superhue lab --skip 20M --references 50M --output sum -- python3 -c 'sum(range(10**7))'",
                ),
            ],
            files: &[
                (
                    "target/lab/frames/",
                    "Frames that real kernels dealt, of kernel/frames; without them placements are drawn.",
                ),
                (
                    "/usr/lib/superhue/trace.so",
                    "Emulator plugin for `lab -- COMMAND`, as packages install it; with another prefix, lib/superhue beside the folder of the \
                     command. `make lab-trace` builds it in the sources. --plugin names another file.",
                ),
            ],
            see_also: &[("superhue-bench", 1), ("superhue-colors", 1)],
        },
        "bench" => Page {
            examples: &[
                ("What there is:", "superhue bench --list"),
                (
                    "A first impression of everything:",
                    "superhue bench all --quick",
                ),
                (
                    "Draw a kept result again:",
                    "superhue bench --from colors-chase.json --output pictures",
                ),
            ],
            see_also: &[("superhue-colors", 1)],
            ..Page::default()
        },
        "status" => Page {
            examples: &[
                ("Every process that you may look at:", "superhue status"),
                (
                    "Why memory is not huge, here of the shell that you type in:",
                    "superhue status --why $$",
                ),
                (
                    "The processes of a user, for another program:",
                    "superhue status --user root --json",
                ),
            ],
            see_also: &[("superhue-heat", 1), ("proc", 5)],
            ..Page::default()
        },
        "heat" => Page {
            examples: &[
                (
                    "A service for half a minute, drawn, and kept for later:",
                    "superhue heat --unit redis-server --for 30s --plot heat.svg --report heat.json",
                ),
                (
                    "Live in the terminal, by command name:",
                    "superhue heat redis-server --follow",
                ),
                (
                    "Show a kept result page by page:",
                    "superhue heat --from heat.json --list-pages",
                ),
            ],
            see_also: &[("superhue-status", 1), ("superhue-track", 1)],
            ..Page::default()
        },
        "track" => Page {
            examples: &[
                (
                    "As a service of systemd:",
                    "systemctl enable --now superhue-track",
                ),
                (
                    "By hand, with little memory:",
                    "superhue track --max-memory 256M --max-clients 16",
                ),
                (
                    "Beside another one, at a socket of its own:",
                    "superhue track --socket /run/superhue/other-track.sock",
                ),
            ],
            files: &[(TRACK_SOCKET, "Where it listens; every user may connect.")],
            see_also: &[("hps", 3), ("superhue-heat", 1)],
        },
        "daemon" => Page {
            examples: &[
                (
                    "Check the rules, and list the processes that each matches:",
                    "superhue daemon --check",
                ),
                (
                    "As a service of systemd:",
                    "systemctl enable --now superhue",
                ),
                (
                    "Elsewhere, as the child of any supervisor:",
                    "superhue daemon --config /srv/superhue --socket /run/superhue/other.sock",
                ),
            ],
            files: &[
                (RULES, "Belongs to the package; has only comments."),
                (
                    MORE_RULES,
                    "Your rules and settings, read in order of name; a link to /dev/null masks a file. superhue.toml(5) has the keys.",
                ),
                (
                    CTL_SOCKET,
                    "Where it listens for superhue-ctl(1): root, and the group superhue.",
                ),
                (
                    USERS_SOCKET,
                    "Where it listens for users, if the configuration allows some ([users]).",
                ),
                (
                    PAUSED,
                    "There while it is paused. It survives a restart of the daemon, but not a reboot.",
                ),
                (JOURNAL, JOURNAL_IS),
            ],
            see_also: &[
                ("superhue-ctl", 1),
                ("superhue-attach", 1),
                ("systemd.unit", 5),
                ("cgroups", 7),
            ],
        },
        "ctl" => Page {
            examples: &[
                (
                    "Memory, coverage and cost, by rule and service:",
                    "superhue ctl status",
                ),
                (
                    "Which rule a process belongs to:",
                    "superhue ctl why redis-server",
                ),
                ("Stop all actions:", "superhue ctl pause"),
                ("Apply changed rules:", "superhue ctl reload"),
                ("Measure the gain of a rule:", "superhue ctl trial redis"),
            ],
            files: CTL_FILES,
            see_also: &[("superhue-daemon", 1)],
        },
        "ctl-status" => ctl_page(&[("For another program:", "superhue ctl status --json")]),
        "ctl-rules" => ctl_page(&[(
            "In the order in which they are tried:",
            "superhue ctl rules",
        )]),
        "ctl-why" => ctl_page(&[
            (
                "The rule of a process, and why none before it:",
                "superhue ctl why redis-server",
            ),
            ("Of the shell that you type in:", "superhue ctl why $$"),
        ]),
        "ctl-metrics" => ctl_page(&[(
            "For the textfile collector of node_exporter, without a port:",
            "superhue ctl metrics",
        )]),
        "ctl-pause" => ctl_page(&[("During an incident:", "superhue ctl pause")]),
        "ctl-resume" => ctl_page(&[("After an incident:", "superhue ctl resume")]),
        "ctl-reload" => ctl_page(&[("After a change of the rules:", "superhue ctl reload")]),
        "ctl-trial" => ctl_page(&[
            (
                "By CPU time for each command that the server answers:",
                "superhue ctl trial redis --metric-kind work --metric-command 'redis-cli info stats' \
                 --metric-regex 'total_commands_processed:([0-9]+)'",
            ),
            (
                "With a limit that undoes the trial, and a report to keep:",
                "superhue ctl trial redis --guard 'rss < 12G' --report trial.json",
            ),
        ]),
        "advise" => Page {
            examples: &[
                ("Estimate the gain of each service:", "superhue advise"),
                (
                    "One service, watched for longer:",
                    "superhue advise --unit redis-server --for 20s",
                ),
                (
                    "All figures, wider than a terminal:",
                    "superhue advise --wide --for 10s",
                ),
            ],
            files: &[
                (
                    "/run/superhue/walks.json",
                    "What a TLB miss costs on this machine; measured again after an hour, and after a boot.",
                ),
                (TLB, TLB_IS),
            ],
            see_also: &[
                ("superhue-trial", 1),
                ("superhue-status", 1),
                ("superhue-heat", 1),
            ],
        },
        "trial" => Page {
            examples: &[
                (
                    "CPU time of a server whose load is fixed:",
                    "superhue trial --unit redis-server",
                ),
                (
                    "CPU time for each command that it answers, however busy it is:",
                    "superhue trial --unit redis-server --metric-kind work --metric-command 'redis-cli info stats' \
                     --metric-regex 'total_commands_processed:([0-9]+)'",
                ),
                (
                    "A counter that Prometheus scrapes every 15 s, with a limit that undoes the trial:",
                    "superhue trial --cgroup system.slice/api.service --prometheus http://127.0.0.1:9090 \
                     --query app_requests_total --block 60s --for 1h --guard 'rss < 12G'",
                ),
                (
                    "Memory that is huge already, with its frames scattered in off:",
                    "superhue trial --unit redis-server --present --swap --report first.json",
                ),
                (
                    "An undecided trial, continued:",
                    "superhue trial --unit redis-server --present --swap --continue first.json --for 30m",
                ),
            ],
            see_also: &[
                ("superhue-compare", 1),
                ("superhue-daemon", 1),
                ("superhue-ctl", 1),
            ],
            ..Page::default()
        },
        "top" => Page {
            examples: &[
                (
                    "Services, live: memory, coverage, and what the daemon does:",
                    "superhue top",
                ),
                (
                    "Processes, and which of their memory is accessed:",
                    "superhue top processes --track",
                ),
                (
                    "One service, with its processes:",
                    "superhue top processes --unit redis-server",
                ),
                ("One table, for a mail or a log:", "superhue top --once"),
                ("Everything, for another program:", "superhue top --json"),
                (
                    "A record of at most 1 GiB, until it is interrupted:",
                    "superhue top --record /var/tmp/top.rec --record-limit 1G --interval 5s",
                ),
                (
                    "The processes of half past ten (UTC), from that record:",
                    "superhue top processes --replay /var/tmp/top.rec --at 10:30 --once",
                ),
            ],
            files: CTL_FILES,
            see_also: &[
                ("superhue-status", 1),
                ("superhue-heat", 1),
                ("superhue-daemon", 1),
            ],
        },
        "colors" => Page {
            examples: &[
                (
                    "The number of colors, and the method that finds them:",
                    "superhue colors",
                ),
                (
                    "Proof, as a picture:",
                    "superhue colors --verify --plot colors.svg",
                ),
                (
                    "Forget the colors after a migration of the virtual machine; the next use finds them again:",
                    "superhue colors --forget",
                ),
                (
                    "Colors for real-time tasks, on a machine with 32 of them (superhue colors --help):",
                    "superhue colors --plan plan.toml --of 32",
                ),
            ],
            files: &[(PALETTE, PALETTE_IS)],
            see_also: &[("superhue-bench", 1), ("superhue_color", 3)],
        },
        "restore" => Page {
            examples: &[
                ("After a superhue was killed:", "superhue restore"),
                (
                    "For another program: what was undone, and what was left:",
                    "superhue restore --json",
                ),
                (
                    "With each step on standard error:",
                    "superhue restore --verbose",
                ),
            ],
            files: &[(
                JOURNAL,
                "One file for each running superhue that changed a setting.",
            )],
            see_also: &[("superhue-run", 1)],
        },
        _ => Page::default(),
    }
}

const CTL_FILES: &[(&str, &str)] = &[(CTL_SOCKET, "Where the daemon listens.")];

const fn ctl_page(examples: &'static [(&'static str, &'static str)]) -> Page {
    Page {
        examples,
        files: CTL_FILES,
        see_also: &[("superhue-ctl", 1), ("superhue-daemon", 1)],
    }
}

/// Ends the long help (`--help`) of each verb with the meaning of its exit status and the examples of its page.
pub fn with_examples(command: Command) -> Command {
    with_examples_of("", command)
}

fn with_examples_of(verb: &str, mut command: Command) -> Command {
    let names: Vec<String> = (command.get_subcommands())
        .map(|inner| inner.get_name().to_owned())
        .collect();
    for name in names {
        let full = format!("{verb}-{name}");
        let full = full.trim_start_matches('-').to_owned();
        command = command.mut_subcommand(name, |inner| with_examples_of(&full, inner));
    }
    let examples = page(verb).examples;
    if examples.is_empty() {
        return command;
    }
    let status = command.get_after_help().map(ToString::to_string);
    let mut text = status.unwrap_or_else(|| args::COMMON_EXIT_HELP.to_owned());
    text += "\n\nExamples:";
    for (purpose, example) in examples {
        text += &format!("\n  {purpose}\n      {example}");
    }
    command.after_long_help(text)
}

/// Returns the sections, in the usual order. `after`, the end of the help, is the text on the exit status; without it the common statuses are.
pub fn sections(verb: &str, after: Option<&str>) -> Roff {
    let page = page(verb);
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    match after {
        Some(after) => {
            for line in after.lines() {
                roff.text([roman(line)]);
                roff.control("PP", []);
            }
        }
        None => {
            for (status, meaning) in args::EXIT_STATUS {
                tagged(&mut roff, status, meaning);
            }
        }
    }
    if verb.is_empty() {
        roff.control("SH", ["EXIT STATUS AFTER CTRL-C"]);
        for (verbs, meaning) in args::AFTER_INTERRUPT {
            tagged(&mut roff, verbs, meaning);
        }
    }
    if !page.files.is_empty() {
        roff.control("SH", ["FILES"]);
        for (path, meaning) in page.files {
            tagged(&mut roff, path, meaning);
        }
    }
    if !page.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        for (purpose, command) in page.examples {
            roff.text([roman(*purpose)]);
            roff.control("PP", []);
            roff.control("RS", ["4"]);
            roff.control("EX", []);
            roff.text([roman(*command)]);
            roff.control("EE", []);
            roff.control("RE", []);
            roff.control("PP", []);
        }
    }
    let parent = ("superhue", 1);
    let others = (page.see_also.iter()).chain((!verb.is_empty()).then_some(&parent));
    let mut line: Vec<Inline> = Vec::new();
    for (name, section) in others {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(*name), roman(format!("({section})"))]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
    roff
}

fn tagged(roff: &mut Roff, tag: &str, text: &str) {
    roff.control("TP", []);
    roff.text([bold(tag)]);
    roff.text([roman(text)]);
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Cli;

    /// Returns the verb of every generated page.
    fn verbs() -> Vec<String> {
        fn below(command: &clap::Command, name: &str, found: &mut Vec<String>) {
            found.push(name.to_owned());
            for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
                let full = format!("{name}-{}", verb.get_name());
                below(verb, full.trim_start_matches('-'), found);
            }
        }
        let mut found = Vec::new();
        below(&Cli::command(), "", &mut found);
        found
    }

    #[test]
    fn every_example_is_a_command_that_is_understood() {
        for verb in verbs() {
            let page = page(&verb);
            // A request to the daemon has no options of its own to show.
            let least = if verb.starts_with("ctl-") { 1 } else { 3 };
            assert!(
                page.examples.len() >= least,
                "`superhue {verb}` has {} examples",
                page.examples.len()
            );
            for (purpose, command) in page.examples {
                assert!(purpose.ends_with(':'), "{purpose}");
                let words = shell_words::split(command).unwrap();
                match &words[0][..] {
                    "superhue" => {
                        let parsed = Cli::try_parse_from(&words);
                        assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
                        let asked = words[1..].join("-");
                        assert!(
                            asked.starts_with(&verb),
                            "`{command}` is on the page of {verb}"
                        );
                    }
                    // Units of this project.
                    "systemctl" => assert!(words[3].starts_with("superhue"), "{command}"),
                    other => panic!("{other}: what is this?"),
                }
            }
        }
    }

    /// Returns the commands of a document of this project: indented lines that begin with `superhue`, without comments and what a shell does with the
    /// output.
    fn commands_of(document: &str) -> Vec<Vec<String>> {
        let joined = document.replace("\\\n", " ");
        let lines = joined.lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?.trim_start();
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            line.starts_with("superhue ").then_some(line)
        });
        let words = lines.map(|line| {
            let command = line.split(" # ").next().unwrap_or(line);
            let words = shell_words::split(command).unwrap_or_else(|_| panic!("{line}"));
            let of_shell =
                |word: &String| ["|", "&&", ";"].contains(&&**word) || word.starts_with('>');
            let words = words.into_iter().take_while(|word| !of_shell(word));
            // A number in place of the letters that stand for one.
            let words = words.map(|word| match &*word {
                "PID" => "4711".to_owned(),
                _ => word,
            });
            words.collect()
        });
        words.collect()
    }

    #[test]
    fn every_command_of_the_guides_is_understood() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guides = std::fs::read_dir(root.join("docs/guide")).unwrap();
        let guides = guides.map(|entry| entry.unwrap().path());
        let guides = guides.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
        let mut found = 0;
        for path in guides.chain([root.join("README.md")]) {
            let document = std::fs::read_to_string(&path).unwrap();
            for words in commands_of(&document) {
                let parsed = Cli::try_parse_from(&words);
                assert!(
                    parsed.is_ok(),
                    "{}: {words:?}: {}",
                    path.display(),
                    parsed.unwrap_err()
                );
                found += 1;
            }
        }
        assert!(found > 60, "{found}");
    }

    #[test]
    fn pages_refer_to_pages_that_are_there() {
        let verbs = verbs();
        let ours = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man");
        let others = ["madvise", "proc", "systemd.unit", "cgroups"];
        for verb in &verbs {
            for (name, section) in page(verb).see_also {
                let is_verb = *section == 1
                    && (name.strip_prefix("superhue-"))
                        .is_some_and(|name| verbs.iter().any(|verb| verb == name));
                let is_ours = ours.join(format!("{name}.{section}")).exists();
                assert!(
                    is_verb || is_ours || others.contains(name),
                    "{name}({section})"
                );
            }
        }
    }
}
