//! Completions of values that are known only at the completion itself: processes, units, users; and of the command behind `--`.
//!
//! `clap_complete` writes a script of options and of values with fixed names. What follows is added to it, for the shells of the packages.
//!
//! Any user can start a process of any name. So names are compared and never evaluated, and names with characters that a shell interprets are left
//! out. (In bash, `compgen -W` would evaluate them.)

use clap::{Arg, Command};
use clap_complete::Shell;

/// Returns the script with the additions for a shell.
pub(super) fn added(shell: Shell, command: &Command, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}\n{}", bash(command)),
        Shell::Zsh => zsh(script),
        Shell::Fish => format!("{script}\n{}", fish(command)),
        _ => script.to_owned(),
    }
}

/// Returns the verbs that take processes: `status`, `ctl why`.
fn verbs_of_processes(command: &Command) -> Vec<String> {
    let takes = |command: &Command| {
        let mut positionals = command.get_positionals();
        positionals.any(|argument| argument.get_id() == "processes")
    };
    let mut verbs = Vec::new();
    for verb in command.get_subcommands() {
        if takes(verb) {
            verbs.push(verb.get_name().to_owned());
        }
        let inner = verb.get_subcommands().filter(|inner| takes(inner));
        verbs.extend(inner.map(|inner| format!("{} {}", verb.get_name(), inner.get_name())));
    }
    verbs
}

/// Returns the options that take a value, of all verbs: `--budget`, `-n`.
fn options_with_value(command: &Command) -> Vec<String> {
    fn collect(command: &Command, found: &mut Vec<String>) {
        let is_valued = |option: &&Arg| option.get_action().takes_values();
        for option in command.get_opts().filter(is_valued) {
            found.extend(option.get_long().map(|long| format!("--{long}")));
            found.extend(option.get_short().map(|short| format!("-{short}")));
        }
        for verb in command.get_subcommands() {
            collect(verb, found);
        }
    }
    let mut found = Vec::new();
    collect(command, &mut found);
    found.sort();
    found.dedup();
    found
}

/// `@VERBS@` and `@VALUED@` stand for patterns of `case`.
const BASH: &str = r#"
# Adds the words of standard input that begin with $1. They are compared, never evaluated.
_superhue_add() {
    local word
    while IFS= read -r word; do
        if [[ $word == "$1"* && $word =~ ^[[:alnum:]_.:@/-]+$ ]]; then
            COMPREPLY+=("$word")
        fi
    done
}

# Values that are known only now, and the command behind `--`; the rest is up to the function above.
_superhue_values() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word at
    COMPREPLY=()
    for ((at = 1; at < COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        if [[ $word == -- ]]; then
            _superhue_command "$((at + 1))"
            return 0
        elif [[ $word != -* && ( -z $verb || $verb == ctl ) ]]; then
            verb="${verb:+$verb }$word"
        fi
    done
    # bash splits --user=alice into three words.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    case $prev in
        --user)
            _superhue_add "$cur" < <(compgen -u) ;;
        --unit)
            _superhue_add "$cur" < <(systemctl list-units --type=service,scope,slice --no-legend --plain 2>/dev/null | cut -d ' ' -f 1) ;;
        --cgroup)
            _superhue_add "$cur" < <(cd /sys/fs/cgroup 2>/dev/null && compgen -d -- "$cur")
            compopt -o nospace 2>/dev/null ;;
        @VALUED@)
            _superhue "$@"
            return 0 ;;
        *)
            case $cur,$verb in
                -*,*)
                    _superhue "$@"
                    return 0 ;;
                [0-9]*,@VERBS@)
                    _superhue_add "$cur" < <(cd /proc && printf '%s\n' [0-9]*) ;;
                *,@VERBS@)
                    _superhue_add "$cur" < <(cat /proc/[0-9]*/comm 2>/dev/null | sort -u) ;;
                *)
                    _superhue "$@"
                    return 0 ;;
            esac ;;
    esac
    compopt +o default +o bashdefault 2>/dev/null
    return 0
}

# Completes the command that begins at word $1, as if it were typed alone.
_superhue_command() {
    local cur=${COMP_WORDS[COMP_CWORD]}
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}

complete -F _superhue_values -o bashdefault -o default superhue
"#;

fn bash(command: &Command) -> String {
    let verbs: Vec<String> = (verbs_of_processes(command).iter())
        .map(|verb| format!("\"{verb}\""))
        .collect();
    // Each alternative of a pattern repeats what stands before the comma.
    let alternatives = |before: &str| {
        let all = verbs.iter().map(|verb| format!("{before},{verb}"));
        all.collect::<Vec<_>>().join("|")
    };
    let own = ["--user", "--unit", "--cgroup"];
    let mut valued = options_with_value(command);
    valued.retain(|option| !own.contains(&option.as_str()));
    BASH.replace("[0-9]*,@VERBS@", &alternatives("[0-9]*"))
        .replace("*,@VERBS@", &alternatives("*"))
        .replace("@VALUED@", &valued.join("|"))
}

const ZSH: &str = r#"
_superhue_processes() {
    local -a names
    names=(${(u)${(f)"$(cat /proc/<->/comm 2>/dev/null)"}})
    _alternative 'pids:process ID:_pids' 'names:command name:compadd -a names'
}

_superhue_units() {
    local -a units
    units=(${(f)"$(systemctl list-units --type=service,scope,slice --no-legend --plain 2>/dev/null | cut -d ' ' -f 1)"})
    compadd -a units
}

"#;

/// Line of a zsh script with which its last part begins.
const ZSH_END: &str = "if [ \"$funcstack[1]\" = \"_superhue\" ]; then";

/// Gives arguments whose values are known later their functions. `clap_complete` leaves the place of the function empty.
fn zsh(script: &str) -> String {
    let mut text = String::with_capacity(script.len() + ZSH.len());
    for line in script.lines() {
        if line == ZSH_END {
            text += ZSH;
        }
        let function = match line {
            _ if line.contains("::processes -- ") => Some("_superhue_processes"),
            _ if line.contains("--unit=[") => Some("_superhue_units"),
            _ => None,
        };
        match (function, line.strip_suffix("' \\")) {
            (Some(function), Some(start)) => text += &format!("{start}{function}' \\"),
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

const FISH: &str = r#"
# Completes the command behind `--` as if it were typed alone.
function __fish_superhue_command
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words); or return
    set -l first (math $at + 1)
    complete -C (string join ' ' -- (string escape -- $words[$first..-2]) (commandline -ct))
end

complete -c superhue -n "contains -- -- (commandline -opc)" -x -a "(__fish_superhue_command)"
"#;

fn fish(command: &Command) -> String {
    let mut text = FISH.trim_start().to_owned();
    let before_command = "; and not contains -- -- (commandline -opc)";
    for verb in verbs_of_processes(command) {
        let condition = match verb.split_once(' ') {
            Some((verb, inner)) => format!(
                "__fish_superhue_using_subcommand {verb}; and __fish_seen_subcommand_from {inner}"
            ),
            None => format!("__fish_superhue_using_subcommand {verb}"),
        };
        for values in ["(__fish_complete_pids)", "(ps -eo comm= | sort -u)"] {
            text += &format!("complete -c superhue -n \"{condition}\" -f -a \"{values}\"\n");
        }
        text += &format!(
            "complete -c superhue -n \"{condition}\" -l unit -x -a \"(__fish_systemctl_services)\"\n"
        );
    }
    let ids: Vec<&str> = superhue::probe::ids().collect();
    text + &format!(
        "complete -c superhue -n \"__fish_superhue_using_subcommand check{before_command}\" -f -a \"{}\"\n",
        ids.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn script(shell: Shell) -> String {
        let mut script = Vec::new();
        let mut command = Cli::command();
        clap_complete::generate(shell, &mut command, "superhue", &mut script);
        added(shell, &command, &String::from_utf8(script).unwrap())
    }

    #[test]
    fn every_verb_that_takes_processes_completes_them() {
        let verbs = verbs_of_processes(&Cli::command());
        for verb in [
            "attach", "status", "heat", "advise", "trial", "top", "ctl why",
        ] {
            assert!(verbs.iter().any(|known| known == verb), "{verb}");
        }
        let zsh = script(Shell::Zsh);
        let of = |function: &str| zsh.matches(&format!("{function}' \\\n")).count();
        assert_eq!(of("_superhue_processes"), verbs.len(), "{zsh}");
        assert_eq!(of("_superhue_units"), verbs.len());
        assert!(zsh.contains("_superhue_processes() {"));
        assert!(zsh.contains(":_users"));
        let fish = script(Shell::Fish);
        assert_eq!(fish.matches("(__fish_complete_pids)").count(), verbs.len());
    }

    #[test]
    fn no_placeholder_is_left_in_the_script_for_bash() {
        let bash = script(Shell::Bash);
        assert!(!bash.contains("@VERBS@") && !bash.contains("@VALUED@"));
        assert!(bash.contains("--budget|") && !bash.contains("|--json|"));
    }
}
