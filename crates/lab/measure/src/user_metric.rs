//! Numbers that the measured program itself prints: `--metric-regex NAME=REGEX`.

use std::fmt;

use regex::{Captures, Regex, RegexBuilder};

use crate::human::listed;
use crate::metric::{Better, Builtin, Metric, Unit};

/// A metric read from the output of the command: `NAME[:lower|:higher][@first|@last]=REGEX`.
///
/// - Without a suffix, **higher is better**. The name has no influence: `latency=...` must be written `latency:lower=...`.
/// - The number is the first capture group that took part in the match; the whole match if no group did.
/// - Several matches must be of the same number. Different numbers are an error, because only the user knows which one counts, unless the name ends
///   in `@first` or `@last`.
/// - `^` and `$` match at line ends.
/// - A number is what Rust reads as a finite float (`12`, `-1.5`, `3e6`); no thousands
///   separators, no `k` or `M`.
#[derive(Debug, Clone)]
pub struct UserMetric {
    metric: Metric,
    regex: Regex,
    which: MatchChoice,
}

/// Choice among several matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatchChoice {
    /// The only number; different numbers are an error.
    Only,
    First,
    Last,
}

/// Largest number of different numbers that an error names.
const NAMED: usize = 5;

/// Reason why `--metric-regex` cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserMetricError {
    /// The text has no `=`.
    #[error("`{0}` is not a metric: write NAME=REGEX, e.g. 'ops=([0-9.]+) ops/s'")]
    NoEquals(String),
    /// The name before the `=` or the `:` is empty.
    #[error("`{0}` has no name: write NAME=REGEX, e.g. 'ops=([0-9.]+) ops/s'")]
    EmptyName(String),
    /// The name ends in an unknown suffix, or has the same kind of suffix twice.
    #[error(
        "`{name}` ends in `{suffix}`: write :lower or :higher, then @first or @last, or neither : nor @"
    )]
    Suffix {
        /// The name without the suffix.
        name: String,
        /// The suffix, with its colon or at sign.
        suffix: String,
    },
    /// The expression does not compile.
    #[error("the expression of metric `{name}` is not valid: {why}")]
    Regex {
        /// Name of the metric.
        name: String,
        /// Message of the regex crate.
        why: String,
    },
    /// Two metrics have the same name.
    #[error("metric `{0}` is given twice: rename one of them")]
    Duplicate(String),
    /// The name is that of a built-in metric.
    #[error("`{0}` is a built-in metric: choose another name")]
    BuiltIn(String),
}

/// Reason why the output of a run gave no number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricMiss {
    /// The expression matches nowhere.
    NoMatch,
    /// The match is not a finite number; holds the (shortened) text.
    NotANumber(String),
    /// There are several matches, of different numbers.
    Several {
        /// Name of the metric, with its direction as it is written.
        name: String,
        /// The first few of them, in the order in which they appear.
        numbers: Vec<String>,
        /// True if there are more.
        more: bool,
    },
}

impl fmt::Display for MetricMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMatch => f.write_str("no match in the output"),
            Self::NotANumber(text) => write!(f, "`{text}` is not a number"),
            Self::Several {
                name,
                numbers,
                more,
            } => {
                let mut numbers = numbers.clone();
                numbers.extend(more.then(|| "more".to_owned()));
                write!(
                    f,
                    "metric `{name}` matches different numbers in one run: {}. Make its expression match \
                     one only (with words around the number, or ^ and $, which match at line ends), or \
                     say which one counts: {name}@first=... or {name}@last=...",
                    listed(&numbers, "and")
                )
            }
        }
    }
}

impl std::error::Error for MetricMiss {}

impl UserMetric {
    /// Returns its regular expression.
    #[must_use]
    pub fn pattern(&self) -> &str {
        self.regex.as_str()
    }

    /// Parses `NAME[:lower|:higher][@first|@last]=REGEX`.
    ///
    /// # Errors
    /// Fails without `=`, with an empty name, an unknown suffix, the name of a built-in metric, or an expression that does not compile.
    pub fn parse(text: &str) -> Result<Self, UserMetricError> {
        let Some((left, pattern)) = text.split_once('=') else {
            return Err(UserMetricError::NoEquals(text.to_owned()));
        };
        let (name, better, which) = suffixes(left)?;
        if name.is_empty() {
            return Err(UserMetricError::EmptyName(text.to_owned()));
        }
        if Builtin::from_name(name).is_some() {
            return Err(UserMetricError::BuiltIn(name.to_owned()));
        }
        let regex = RegexBuilder::new(pattern)
            .multi_line(true)
            .build()
            .map_err(|error| UserMetricError::Regex {
                name: name.to_owned(),
                why: error.to_string(),
            })?;
        Ok(Self {
            metric: Metric {
                name: name.to_owned(),
                label: name.to_owned(),
                unit: Unit::Plain(String::new()),
                better,
            },
            regex,
            which,
        })
    }

    /// Parses all `--metric-regex` options of a command line.
    ///
    /// # Errors
    /// Returns those of [`parse`](Self::parse), and an error for two metrics with the same name.
    pub fn parse_all<T: AsRef<str>>(texts: &[T]) -> Result<Vec<Self>, UserMetricError> {
        let mut metrics: Vec<Self> = Vec::with_capacity(texts.len());
        for text in texts {
            let metric = Self::parse(text.as_ref())?;
            if metrics
                .iter()
                .any(|known| known.metric.name == metric.metric.name)
            {
                return Err(UserMetricError::Duplicate(metric.metric.name));
            }
            metrics.push(metric);
        }
        Ok(metrics)
    }

    /// Returns its name and direction as they are written before `@first` and `=`.
    fn typed(&self) -> String {
        let direction = match self.metric.better {
            Better::Lower => ":lower",
            Better::Higher | Better::Neither => "",
        };
        format!("{}{direction}", self.metric.name)
    }

    /// Returns its name, unit and direction.
    #[must_use]
    pub const fn metric(&self) -> &Metric {
        &self.metric
    }

    /// Reads the number from the output of one run.
    ///
    /// # Errors
    /// Fails if nothing matches, the match is not a finite number, or the matches are different numbers.
    pub fn extract(&self, output: &str) -> Result<f64, MetricMiss> {
        let mut matches = self.regex.captures_iter(output).map(|found| figure(&found));
        let text = match self.which {
            MatchChoice::First => matches.next(),
            MatchChoice::Last => matches.last(),
            MatchChoice::Only => self.only(matches)?,
        };
        let text = text.ok_or(MetricMiss::NoMatch)?;
        number(text).ok_or_else(|| MetricMiss::NotANumber(shortened(text)))
    }

    /// Returns the text of the only number among all matches.
    fn only<'a>(
        &self,
        matches: impl Iterator<Item = &'a str>,
    ) -> Result<Option<&'a str>, MetricMiss> {
        let mut different: Vec<&str> = Vec::new();
        for text in matches {
            let is_known = |known: &&str| {
                *known == text || number(known).is_some_and(|n| number(text) == Some(n))
            };
            if !different.iter().any(is_known) {
                different.push(text);
            }
            if different.len() > NAMED {
                break;
            }
        }
        if different.len() < 2 {
            return Ok(different.first().copied());
        }
        let numbers = different.iter().take(NAMED).map(|text| shortened(text));
        Err(MetricMiss::Several {
            name: self.typed(),
            numbers: numbers.collect(),
            more: different.len() > NAMED,
        })
    }
}

/// Parses name, direction and choice of `NAME[:lower|:higher][@first|@last]`.
fn suffixes(left: &str) -> Result<(&str, Better, MatchChoice), UserMetricError> {
    let (mut better, mut which) = (None, None);
    let mut name = left.trim();
    while let Some(at) = name.rfind([':', '@']) {
        let (before, suffix) = name.split_at(at);
        match suffix {
            ":lower" if better.is_none() => better = Some(Better::Lower),
            ":higher" if better.is_none() => better = Some(Better::Higher),
            "@first" if which.is_none() => which = Some(MatchChoice::First),
            "@last" if which.is_none() => which = Some(MatchChoice::Last),
            _ => {
                return Err(UserMetricError::Suffix {
                    name: before.trim().to_owned(),
                    suffix: suffix.to_owned(),
                });
            }
        }
        name = before.trim();
    }
    Ok((
        name,
        better.unwrap_or(Better::Higher),
        which.unwrap_or(MatchChoice::Only),
    ))
}

/// Returns the first group that took part in a match; the whole match if no group did.
fn figure<'a>(captures: &Captures<'a>) -> &'a str {
    let group = (captures.iter().skip(1).flatten().next()).or_else(|| captures.get(0));
    group.map_or("", |found| found.as_str()).trim()
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extract(spec: &str, output: &str) -> Result<f64, MetricMiss> {
        UserMetric::parse(spec).unwrap().extract(output)
    }

    #[test]
    fn specifications_are_read() {
        let ops = UserMetric::parse("ops=([0-9.]+) ops/s").unwrap();
        assert_eq!(ops.metric().name, "ops");
        assert_eq!(ops.metric().better, Better::Higher);
        let p99 = UserMetric::parse("p99:lower=p99=([0-9.]+)").unwrap();
        assert_eq!(p99.metric().better, Better::Lower);
        let explicit = UserMetric::parse("a:higher=x").unwrap();
        assert_eq!(explicit.metric().better, Better::Higher);
        // A colon in the expression does not belong to the name.
        assert!(UserMetric::parse("rate=rate: ([0-9]+)").is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        use UserMetricError as E;
        let error = |text| UserMetric::parse(text).unwrap_err();
        assert_eq!(error("ops"), E::NoEquals("ops".into()));
        assert_eq!(error("=x"), E::EmptyName("=x".into()));
        assert_eq!(error(":lower=x"), E::EmptyName(":lower=x".into()));
        assert!(matches!(error("a:lowr=x"), E::Suffix { suffix, .. } if suffix == ":lowr"));
        assert!(matches!(error("a@any=x"), E::Suffix { suffix, .. } if suffix == "@any"));
        assert!(matches!(error("a:lower:higher=x"), E::Suffix { name, .. } if name == "a"));
        assert!(matches!(error("a@last@last=x"), E::Suffix { .. }));
        assert!(matches!(error("a=("), E::Regex { name, .. } if name == "a"));
        assert_eq!(error("wall=x"), E::BuiltIn("wall".into()));
        let twice = UserMetric::parse_all(&["a=x", "a:lower=y"]).unwrap_err();
        assert_eq!(twice, E::Duplicate("a".into()));
        assert_eq!(UserMetric::parse_all(&["a=x", "b=y"]).unwrap().len(), 2);
    }

    #[test]
    fn numbers_are_found_in_output() {
        assert_eq!(extract("a=([0-9.]+) ops", "12.5 ops\n13.5 s\n"), Ok(12.5));
        assert_eq!(extract("a=[0-9]+", "x 42 y"), Ok(42.0));
        assert_eq!(extract(r"a=^t: (\S+)$", "t: 1e3\nxt: 7"), Ok(1000.0));
        // With alternatives, the group that took part in the match counts.
        assert_eq!(extract("a=n=(-?[0-9]+)|m=([0-9]+)", "m=7"), Ok(7.0));
        assert_eq!(extract("a=n=(-?[0-9]+)|m=([0-9]+)", "n=-7"), Ok(-7.0));
        assert_eq!(extract("a=x", "y"), Err(MetricMiss::NoMatch));
        for text in ["1,234.5", "nan", "inf", "12k", ""] {
            let miss = extract(r"a=v=(\S*)", &format!("v={text}"));
            assert_eq!(miss, Err(MetricMiss::NotANumber(text.into())), "{text}");
        }
    }

    #[test]
    fn different_numbers_are_not_chosen_from() {
        let output = "mops=12.5\nmops=13.5\nmops=900\n";
        let miss = extract("mops=mops=([0-9.]+)", output).unwrap_err();
        let MetricMiss::Several { numbers, more, .. } = &miss else {
            panic!("{miss:?}");
        };
        assert_eq!((numbers.join(" "), *more), ("12.5 13.5 900".into(), false));
        let said = miss.to_string();
        let lower = extract("mops:lower=mops=([0-9.]+)", output).unwrap_err();
        assert!(
            lower.to_string().contains(" mops:lower@first=..."),
            "{lower}"
        );
        for word in ["`mops`", "12.5, 13.5 and 900", "mops@first", "mops@last"] {
            assert!(said.contains(word), "{said}");
        }
        for (spec, value) in [
            ("m@first=mops=([0-9.]+)", 12.5),
            ("m:lower@last=mops=([0-9.]+)", 900.0),
            ("m@last:lower=mops=([0-9.]+)", 900.0),
            ("m=mops=([0-9]+)$", 900.0),
        ] {
            assert_eq!(extract(spec, output), Ok(value), "{spec}");
        }
        // Different spellings of one number are the same number.
        assert_eq!(extract("a=v=(.*)", "v=2\nv=2.0\nv=2e0"), Ok(2.0));
        let mixed = extract("a=v=(.*)", "v=none\nv=2");
        assert!(
            matches!(mixed, Err(MetricMiss::Several { .. })),
            "{mixed:?}"
        );
        let many: String = (0..9).map(|n| format!("v={n}\n")).collect();
        let miss = extract("a=v=(.*)", &many).unwrap_err().to_string();
        assert!(miss.contains("0, 1, 2, 3, 4 and more"), "{miss}");
    }

    proptest! {
        #[test]
        fn neither_reading_nor_extracting_panics(spec in ".*", output in ".*") {
            if let Ok(metric) = UserMetric::parse(&spec) {
                let _ = metric.extract(&output);
            }
        }
    }
}
