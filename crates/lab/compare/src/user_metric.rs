//! Numbers that the measured program prints about itself: `--metric NAME=REGEX`.

use std::fmt;

use regex::{Regex, RegexBuilder};

use crate::metric::{Better, Builtin, Metric, Unit};

/// A metric read from the output of the command: `NAME[:lower|:higher]=REGEX`.
///
/// - Without a suffix, **higher is better**. Nothing is guessed from the name: `latency=...` must
///   be written `latency:lower=...`.
/// - The number is the first capture group that took part in the match; the whole match where the
///   expression has none.
/// - Of several matches the **last** wins: programs print progress first and the result last.
/// - `^` and `$` match at line ends.
/// - A number is what Rust reads as a finite float (`12`, `-1.5`, `3e6`); no thousands
///   separators, no `k` or `M`.
#[derive(Debug, Clone)]
pub struct UserMetric {
    metric: Metric,
    regex: Regex,
}

/// Why `--metric` was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserMetricError {
    /// There is no `=`.
    #[error("`{0}` is not a metric: write NAME=REGEX, e.g. 'ops=([0-9.]+) ops/s'")]
    NoEquals(String),
    /// Nothing stands before the `=` or the `:`.
    #[error("`{0}` has no name: write NAME=REGEX, e.g. 'ops=([0-9.]+) ops/s'")]
    EmptyName(String),
    /// The name ends in a suffix that is not one of the two.
    #[error("`{name}` ends in `:{suffix}`: write :lower or :higher, or no colon at all")]
    Suffix {
        /// The name without the suffix.
        name: String,
        /// The suffix, without its colon.
        suffix: String,
    },
    /// The expression does not compile.
    #[error("the expression of metric `{name}` is not valid: {why}")]
    Regex {
        /// Of which metric.
        name: String,
        /// What the regex crate says.
        why: String,
    },
    /// Two metrics have one name.
    #[error("metric `{0}` is given twice: rename one of them")]
    Duplicate(String),
    /// The name is one of the built-in ones.
    #[error("`{0}` is a built-in metric: choose another name")]
    BuiltIn(String),
}

/// Why the output of a run gave no number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricMiss {
    /// The expression matches nowhere.
    NoMatch,
    /// The last match is not a finite number; holds the (shortened) text.
    NotANumber(String),
}

impl fmt::Display for MetricMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMatch => f.write_str("no match in the output"),
            Self::NotANumber(text) => write!(f, "`{text}` is not a number"),
        }
    }
}

impl std::error::Error for MetricMiss {}

impl UserMetric {
    /// Reads `NAME[:lower|:higher]=REGEX`.
    ///
    /// # Errors
    /// Without `=`, with an empty name, an unknown suffix, a name that is built in, or an
    /// expression that does not compile.
    pub fn parse(text: &str) -> Result<Self, UserMetricError> {
        let Some((left, pattern)) = text.split_once('=') else {
            return Err(UserMetricError::NoEquals(text.to_owned()));
        };
        let (name, better) = match left.rsplit_once(':') {
            None => (left, Better::Higher),
            Some((name, "higher")) => (name, Better::Higher),
            Some((name, "lower")) => (name, Better::Lower),
            Some((name, suffix)) => {
                return Err(UserMetricError::Suffix {
                    name: name.trim().to_owned(),
                    suffix: suffix.to_owned(),
                });
            }
        };
        let name = name.trim();
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
        })
    }

    /// Reads all `--metric` options of a command line.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse), and two metrics with one name.
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

    /// Its name, unit and direction.
    #[must_use]
    pub const fn metric(&self) -> &Metric {
        &self.metric
    }

    /// Reads the number from what one run printed.
    ///
    /// # Errors
    /// When nothing matches, or the last match is not a finite number.
    pub fn extract(&self, output: &str) -> Result<f64, MetricMiss> {
        let captures = (self.regex.captures_iter(output).last()).ok_or(MetricMiss::NoMatch)?;
        let group = (captures.iter().skip(1).flatten().next()).or_else(|| captures.get(0));
        let text = group.map_or("", |found| found.as_str()).trim();
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err(MetricMiss::NotANumber(text.chars().take(40).collect())),
        }
    }
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
        // A colon in the expression is none of the name.
        assert!(UserMetric::parse("rate=rate: ([0-9]+)").is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        use UserMetricError as E;
        let error = |text| UserMetric::parse(text).unwrap_err();
        assert_eq!(error("ops"), E::NoEquals("ops".into()));
        assert_eq!(error("=x"), E::EmptyName("=x".into()));
        assert_eq!(error(":lower=x"), E::EmptyName(":lower=x".into()));
        assert!(matches!(error("a:lowr=x"), E::Suffix { suffix, .. } if suffix == "lowr"));
        assert!(matches!(error("a=("), E::Regex { name, .. } if name == "a"));
        assert_eq!(error("wall=x"), E::BuiltIn("wall".into()));
        let twice = UserMetric::parse_all(&["a=x", "a:lower=y"]).unwrap_err();
        assert_eq!(twice, E::Duplicate("a".into()));
        assert_eq!(UserMetric::parse_all(&["a=x", "b=y"]).unwrap().len(), 2);
    }

    #[test]
    fn numbers_are_found_in_output() {
        assert_eq!(extract("a=([0-9.]+) ops", "12.5 ops\n13.5 ops\n"), Ok(13.5));
        assert_eq!(extract("a=[0-9]+", "x 42 y"), Ok(42.0));
        assert_eq!(extract(r"a=^t: (\S+)$", "t: 1e3\nxt: 7"), Ok(1000.0));
        // Alternatives: the group that took part.
        assert_eq!(extract("a=n=(-?[0-9]+)|m=([0-9]+)", "m=7"), Ok(7.0));
        assert_eq!(extract("a=n=(-?[0-9]+)|m=([0-9]+)", "n=-7"), Ok(-7.0));
        assert_eq!(extract("a=x", "y"), Err(MetricMiss::NoMatch));
        for text in ["1,234.5", "nan", "inf", "12k", ""] {
            let miss = extract(r"a=v=(\S*)", &format!("v={text}"));
            assert_eq!(miss, Err(MetricMiss::NotANumber(text.into())), "{text}");
        }
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
