//! Arms and parameters of the command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Parser;
use superhue::Config;
use superhue_measure::{Arm, Assignment, Parameter, assignments, scan};

use crate::args::CompareArgs;
use crate::compare_args::ScanArgs;
use crate::output::{Failure, USAGE};
use crate::placement_args::{PlacementArgs, SystemArgs};
use crate::size_check::check_budget;

/// Options of one arm: those of `run` that concern placement.
#[derive(Debug, Parser)]
#[command(name = "arm", no_binary_name = true, disable_help_flag = true)]
struct ArmOptions {
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    system: SystemArgs,
    /// A variable of the command's environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(OsString, OsString)>,
}

/// Reads `NAME=VALUE`.
fn variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => {
            Ok((name.into(), value.into()))
        }
        _ => Err(format!("`{text}` is not NAME=VALUE")),
    }
}

/// Arms of a comparison for which none is given: the kernel's own policy, and the default of `superhue run`.
const DEFAULT_ARMS: [&str; 2] = ["kernel", "auto"];

/// All arms at all values of the parameters, side by side.
#[derive(Debug, Default)]
pub(super) struct Arms {
    pub(super) arms: Vec<Arm>,
    pub(super) configs: Vec<Config>,
    pub(super) assignments: Vec<Assignment>,
}

impl Arms {
    /// Reads them from the arguments.
    ///
    /// # Errors
    /// An option with an error, or a parameter that is used nowhere.
    pub(super) fn read(args: &CompareArgs) -> Result<Self, Failure> {
        let parameters = parameters(&args.scan)?;
        let assignments = assignments(&parameters).map_err(|error| Failure::new(USAGE, error))?;
        let unused = parameters.iter().find(|p| !is_used(p.name(), args));
        if let Some(parameter) = unused {
            let name = parameter.name();
            return Err(Failure::new(
                USAGE,
                format!(
                    "parameter `{name}` would change nothing: write {{{name}}} where its value is to stand"
                ),
            ));
        }
        let mut all = Self::default();
        for assignment in assignments {
            for text in names(args) {
                let (mut arm, config) = parse_arm(text, &assignment)?;
                arm.parameters = assignment.values().clone();
                all.arms.push(arm);
                all.configs.push(config);
                all.assignments.push(assignment.clone());
            }
        }
        Ok(all)
    }
}

/// The parameters, the scanned one first.
fn parameters(args: &ScanArgs) -> Result<Vec<Parameter>, Failure> {
    let step = args.parameter_step_size.as_deref();
    let scanned = args.parameter_scan.chunks_exact(3);
    let scanned = scanned.map(|range| Parameter::range(&range[0], &range[1], &range[2], step));
    let listed = args.parameter_list.chunks_exact(2);
    let listed = listed.map(|list| Parameter::list(&list[0], &list[1]));
    let all: Result<_, _> = scanned.chain(listed).collect();
    all.map_err(|error| Failure::new(USAGE, error))
}

/// Returns true if any text in which parameters are replaced contains `{name}`.
fn is_used(name: &str, args: &CompareArgs) -> bool {
    let words = args.command.iter().map(|part| part.as_bytes());
    let texts = [&args.load, &args.prepare].into_iter().flatten();
    let texts = texts.chain(&args.arms).map(|text| text.as_bytes());
    words.chain(texts).any(|text| scan::mentions(text, name))
}

/// Returns the arms as they were given, or the default ones.
fn names(args: &CompareArgs) -> Vec<&str> {
    match args.arms.is_empty() {
        true => DEFAULT_ARMS.to_vec(),
        false => args.arms.iter().map(String::as_str).collect(),
    }
}

/// Reads `NAME` (a policy) or `NAME=OPTIONS`.
fn parse_arm(text: &str, assignment: &Assignment) -> Result<(Arm, Config), Failure> {
    let (name, options) = match text.split_once('=') {
        Some((name, options)) => (name.trim(), assignment.fill_text(options.trim())),
        None => (text.trim(), format!("--pages {}", text.trim())),
    };
    let config = configuration(&options).map_err(|reason| {
        let hint = "write a policy, or NAME=OPTIONS with options of run";
        Failure::new(USAGE, format!("--arm `{text}`: {reason} ({hint})"))
    })?;
    Ok((Arm::new(name, options), config))
}

/// Returns the configuration that the options of an arm mean.
///
/// # Errors
/// The error in them, as one line.
pub(super) fn configuration(options: &str) -> Result<Config, String> {
    let words = shell_words::split(options).map_err(|error| error.to_string())?;
    let parsed = ArmOptions::try_parse_from(words).map_err(|error| {
        let reason = error.to_string();
        let first = reason.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    check_budget(parsed.placement.budget).map_err(|failure| failure.text)?;
    (parsed.placement).check_effect(&parsed.system.colors.colors)?;
    let mut config = parsed.placement.config();
    parsed.system.add_to(&mut config);
    config.environment = parsed.env;
    Ok(config)
}
