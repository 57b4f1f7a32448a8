//! The served page: samples by family, and the two texts that are made from them.
//!
//! `prometheus-client` writes `OpenMetrics`. Prometheus' older text format differs only in the lines about a family, so [`plain`] rewrites those.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use superhue_model::words;

use super::families::{FAMILIES, Family, Id, Kind};

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Value of a counter, a gauge or an info.
    Number(f64),
    /// Value of a histogram: the sum, and for each bound the number of values above the bound before it and not above it. The last bound is infinite.
    Buckets(f64, Vec<(f64, u64)>),
}

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    /// The labels, in the order of the family's.
    labels: Vec<(&'static str, String)>,
    value: Value,
}

/// All samples of one moment.
#[derive(Debug)]
pub(super) struct Page(Vec<Vec<Sample>>);

impl Page {
    pub(super) fn new() -> Self {
        Self(vec![Vec::new(); FAMILIES.len()])
    }

    /// Adds a sample. The caller adds no two with the same labels.
    pub(super) fn put(&mut self, id: Id, labels: &[&str], value: Value) {
        let Some((family, samples)) = FAMILIES.get(id as usize).zip(self.0.get_mut(id as usize))
        else {
            return;
        };
        debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.stem);
        let named = family.labels.iter().zip(labels);
        let labels = named.map(|(&name, &value)| (name, words::harmless(value).into_owned()));
        samples.push(Sample {
            labels: labels.collect(),
            value,
        });
    }

    pub(super) fn number(&mut self, id: Id, labels: &[&str], value: f64) {
        self.put(id, labels, Value::Number(value));
    }

    /// Returns the page as `OpenMetrics` text, version 1.0.0.
    pub(super) fn openmetrics(self) -> String {
        let mut registry = Registry::with_prefix("superhue");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (family, samples) in FAMILIES.iter().zip(&self.0) {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
            let mut encoder =
                encoder.encode_descriptor(family.stem, family.help, unit.as_ref(), kind)?;
            for sample in samples {
                write(family, sample, &mut encoder)?;
            }
        }
        Ok(())
    }
}

fn write(family: &Family, sample: &Sample, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    if family.kind == Kind::Info {
        return encoder.encode_info(&sample.labels);
    }
    // An empty set would be written as `{}`.
    if sample.labels.is_empty() {
        return write_value(family.kind, &sample.value, encoder);
    }
    write_value(
        family.kind,
        &sample.value,
        &mut encoder.encode_family(&sample.labels)?,
    )
}

fn write_value(kind: Kind, value: &Value, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    match (kind, value, whole(value)) {
        (_, Value::Buckets(sum, buckets), _) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
        (Kind::Counter, _, Some(number)) => {
            encoder.encode_counter::<NoLabelSet, _, f64>(&number, None)
        }
        (Kind::Counter, Value::Number(number), None) => {
            encoder.encode_counter::<NoLabelSet, _, f64>(number, None)
        }
        (_, _, Some(number)) => encoder.encode_gauge(&number),
        (_, Value::Number(number), None) => encoder.encode_gauge(number),
    }
}

/// Returns a number that is shorter without a fraction.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    reason = "the range is looked at first"
)]
fn whole(value: &Value) -> Option<u64> {
    const EXACT: f64 = 9e15;
    match value {
        Value::Number(number) if (0.0..EXACT).contains(number) && number.fract() == 0.0 => {
            Some(*number as u64)
        }
        _ => None,
    }
}

/// Returns the same page in Prometheus' text format, version 0.0.4. There, families have the names of their samples, units and the mark at the end
/// are unknown, and an info is a gauge.
pub(super) fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = "";
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The type follows, and decides the name.
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            text += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let mut page = Page::new();
        page.number(Id::Build, &["1.2"], 1.0);
        page.number(Id::Paused, &[], 0.0);
        page.number(Id::Cpu, &["main"], 0.25);
        page.number(Id::RuleCollapses, &["r"], 9e15 - 1.0);
        let service = "a\"b\\c\nd\u{fffd}\r#€ {x=\"y\"} 1";
        page.number(Id::ServiceProcesses, &["r", service], 3.0);
        let buckets = vec![(0.5, 2), (f64::INFINITY, 1)];
        page.put(Id::RuleCollapseTime, &["r"], Value::Buckets(3.5, buckets));
        page
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        let text = page().openmetrics();
        for expected in [
            "# TYPE superhue_build info\n",
            "\nsuperhue_build_info{version=\"1.2\"} 1\n",
            "\nsuperhue_paused 0\n",
            "\n# TYPE superhue_cpu_seconds counter\n# UNIT superhue_cpu_seconds seconds\n",
            "\nsuperhue_cpu_seconds_total{part=\"main\"} 0.25\n",
            "\nsuperhue_rule_collapses_total{rule=\"r\"} 8999999999999999\n",
            "\nsuperhue_rule_collapse_duration_seconds_bucket{le=\"0.5\",rule=\"r\"} 2\n",
            "\nsuperhue_rule_collapse_duration_seconds_bucket{le=\"+Inf\",rule=\"r\"} 3\n",
            "\nsuperhue_rule_collapse_duration_seconds_sum{rule=\"r\"} 3.5\n",
            "\nsuperhue_rule_collapse_duration_seconds_count{rule=\"r\"} 3\n",
            "service=\"a\\\"b\\\\c\\\\u{a}d\u{fffd}\\\\u{d}#€ {x=\\\"y\\\"} 1\"} 3\n",
        ] {
            assert!(text.contains(expected), "{expected:?}\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
        let told = text.lines().filter(|line| line.starts_with("# TYPE "));
        assert_eq!(told.count(), FAMILIES.len());
    }

    #[test]
    fn the_older_format_has_neither_and_names_families_as_samples() {
        let text = plain(&page().openmetrics());
        for expected in [
            "# TYPE superhue_build_info gauge\n",
            "# TYPE superhue_cpu_seconds_total counter\nsuperhue_cpu_seconds_total{part=\"main\"} 0.25\n",
            "# TYPE superhue_rule_collapse_duration_seconds histogram\n",
            "# HELP superhue_paused 1 while",
        ] {
            assert!(text.contains(expected), "{expected:?}\n{text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
        // The samples are the same.
        let samples = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("# "));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(samples(&text), samples(&page().openmetrics()));
        for family in FAMILIES {
            assert!(text.contains(&format!("# TYPE {} ", family.name())));
        }
    }
}
