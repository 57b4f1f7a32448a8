//! Parameters of the command that take several values: `{size}` for 1, 2, 4.
//!
//! All arms run at every value, and are compared at the same value only. With several parameters, each combination of their values counts as one
//! value. The correction for many questions covers all values together (see [`verdict`](crate::verdict)): a scan of ten sizes shows "something" at
//! one of them by chance no more often than a comparison at one size.

use std::collections::BTreeMap;

/// Parameter and its values, as text, in the order in which they are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    name: String,
    values: Vec<String>,
}

/// One value for each parameter; empty without a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignment(BTreeMap<String, String>);

/// Reason why parameters cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The name is not allowed between braces.
    #[error(
        "`{0}` is no name of a parameter: use letters, digits, - and _ (in the command: {{NAME}})"
    )]
    Name(String),
    /// Two parameters have the same name.
    #[error("parameter `{0}` is given twice: rename one of them")]
    Duplicate(String),
    /// A parameter has the same value twice.
    #[error("parameter `{name}` has the value `{value}` twice: remove one")]
    DuplicateValue {
        /// Name of the parameter.
        name: String,
        /// The value.
        value: String,
    },
    /// A bound or a step is not a decimal number.
    #[error(
        "parameter `{name}`: `{text}` is no decimal number of at most 15 digits (e.g. 10, -3, 0.25)"
    )]
    Number {
        /// Name of the parameter.
        name: String,
        /// The given text.
        text: String,
    },
    /// The greatest value is below the least one.
    #[error("parameter `{0}`: the scan goes from MIN up to MAX: exchange them")]
    Empty(String),
    /// The step is not above 0.
    #[error("parameter `{0}`: the step must be above 0")]
    Step(String),
    /// The step is missing, and the bounds are not whole numbers.
    #[error("parameter `{0}`: say the step, since the bounds are no whole numbers (-D 0.25)")]
    NoStep(String),
    /// There are more than [`MAX_COMBINATIONS`] values.
    #[error(
        "{0} values or more are to be scanned, and {MAX_COMBINATIONS} are the most: use a larger step or fewer parameters"
    )]
    TooMany(usize),
}

/// Most combinations of values that one comparison takes.
pub const MAX_COMBINATIONS: usize = 1000;

impl Parameter {
    /// Makes a parameter with listed values: `a,b,c`. A comma within a value is written `\,`, a backslash `\\`.
    ///
    /// # Errors
    /// Fails if the name is not allowed between braces, a value occurs twice, or there are too many.
    pub fn list(name: &str, list: &str) -> Result<Self, ScanError> {
        let mut values = vec![String::new()];
        let mut characters = list.chars();
        while let Some(character) = characters.next() {
            let next = match character {
                ',' => {
                    values.push(String::new());
                    continue;
                }
                '\\' => match characters.clone().next() {
                    Some(escaped @ (',' | '\\')) => {
                        characters.next();
                        escaped
                    }
                    _ => '\\',
                },
                other => other,
            };
            if let Some(last) = values.last_mut() {
                last.push(next);
            }
        }
        Self::new(name, values)
    }

    /// Makes a parameter that goes from `least` to `most` in steps (of 1, if none is given and both are whole). Decimal numbers are exact: 0 to
    /// 0.3 in steps of 0.1 has four values.
    ///
    /// # Errors
    /// Fails if the name is not allowed between braces, a text is not a number, the range is empty, or there are too many values.
    pub fn range(
        name: &str,
        least: &str,
        most: &str,
        step: Option<&str>,
    ) -> Result<Self, ScanError> {
        let number = |text: &str| {
            Decimal::parse(text).ok_or_else(|| ScanError::Number {
                name: name.to_owned(),
                text: text.to_owned(),
            })
        };
        let (least, most) = (number(least)?, number(most)?);
        let step = match step {
            Some(step) => number(step)?,
            None if least.places == 0 && most.places == 0 => Decimal {
                units: 1,
                places: 0,
            },
            None => return Err(ScanError::NoStep(name.to_owned())),
        };
        let places = least.places.max(most.places).max(step.places);
        let [first, last, step] = [least, most, step].map(|number| number.with(places));
        if step <= 0 {
            return Err(ScanError::Step(name.to_owned()));
        }
        if last < first {
            return Err(ScanError::Empty(name.to_owned()));
        }
        let count = usize::try_from((last - first) / step + 1).unwrap_or(usize::MAX);
        if count > MAX_COMBINATIONS {
            return Err(ScanError::TooMany(count));
        }
        let values = (0..count as i128).map(|index| {
            let units = first + index * step;
            Decimal { units, places }.to_string()
        });
        Self::new(name, values.collect())
    }

    fn new(name: &str, values: Vec<String>) -> Result<Self, ScanError> {
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(ScanError::Name(name.to_owned()));
        }
        if values.len() > MAX_COMBINATIONS {
            return Err(ScanError::TooMany(values.len()));
        }
        let twice = (1..values.len()).find(|&index| values[..index].contains(&values[index]));
        if let Some(index) = twice {
            return Err(ScanError::DuplicateValue {
                name: name.to_owned(),
                value: values[index].clone(),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            values,
        })
    }

    /// Returns the name, which the command has between braces.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its values.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }
}

/// Returns all combinations of values, the last parameter changing fastest; without parameters, one empty combination.
///
/// # Errors
/// Fails if two parameters have the same name, or there are more than [`MAX_COMBINATIONS`] combinations.
pub fn assignments(parameters: &[Parameter]) -> Result<Vec<Assignment>, ScanError> {
    let mut all = vec![Assignment::default()];
    for (index, parameter) in parameters.iter().enumerate() {
        if parameters[..index].iter().any(|p| p.name == parameter.name) {
            return Err(ScanError::Duplicate(parameter.name.clone()));
        }
        let count = all.len() * parameter.values.len();
        if count > MAX_COMBINATIONS {
            return Err(ScanError::TooMany(count));
        }
        let longer = all.iter().flat_map(|assignment| {
            parameter.values.iter().map(|value| {
                let mut assignment = assignment.clone();
                assignment.0.insert(parameter.name.clone(), value.clone());
                assignment
            })
        });
        all = longer.collect();
    }
    Ok(all)
}

impl Assignment {
    /// Returns the values by name.
    #[must_use]
    pub const fn values(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Returns the text with every `{NAME}` of a parameter replaced by its value. Works on bytes, because arguments need not be text. Does not
    /// replace names within values.
    #[must_use]
    pub fn fill(&self, template: &[u8]) -> Vec<u8> {
        let mut filled = Vec::with_capacity(template.len());
        let mut rest = template;
        while let Some((&first, after)) = rest.split_first() {
            let found = (first == b'{')
                .then(|| self.0.iter().find(|(name, _)| opens(after, name)))
                .flatten();
            if let Some((name, value)) = found {
                filled.extend_from_slice(value.as_bytes());
                rest = after.get(name.len() + 1..).unwrap_or_default();
            } else {
                filled.push(first);
                rest = after;
            }
        }
        filled
    }

    /// Fills in a text in the same way.
    #[must_use]
    pub fn fill_text(&self, template: &str) -> String {
        // The result is valid UTF-8: whole characters replace whole characters.
        String::from_utf8_lossy(&self.fill(template.as_bytes())).into_owned()
    }
}

/// Returns true if the text contains `{name}`.
#[must_use]
pub fn mentions(text: &[u8], name: &str) -> bool {
    (0..text.len()).any(|at| text[at] == b'{' && opens(&text[at + 1..], name))
}

/// Returns true if the bytes after a `{` are `name` and `}`.
fn opens(after: &[u8], name: &str) -> bool {
    (after.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.first() == Some(&b'}'))
}

/// A decimal number: `units` / 10^`places`.
#[derive(Clone, Copy)]
struct Decimal {
    units: i128,
    places: u32,
}

impl Decimal {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let joined = format!("{whole}{fraction}");
        let is_number = joined.bytes().all(|byte| byte.is_ascii_digit());
        if joined.is_empty() || joined.len() > 15 || !is_number {
            return None;
        }
        let units: i128 = joined.parse().ok()?;
        Some(Self {
            units: if negative { -units } else { units },
            places: u32::try_from(fraction.len()).ok()?,
        })
    }

    /// Returns the units at `places` decimal places, which must be at least its own.
    fn with(self, places: u32) -> i128 {
        self.units * 10i128.pow(places - self.places)
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.units < 0 { "-" } else { "" };
        let power = 10u128.pow(self.places);
        let (whole, fraction) = (
            self.units.unsigned_abs() / power,
            self.units.unsigned_abs() % power,
        );
        match self.places as usize {
            0 => write!(f, "{sign}{whole}"),
            places => write!(f, "{sign}{whole}.{fraction:0places$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(least: &str, most: &str, step: Option<&str>) -> Result<Vec<String>, ScanError> {
        Parameter::range("n", least, most, step).map(|parameter| parameter.values)
    }

    #[test]
    fn ranges_are_exact() {
        assert_eq!(range("1", "3", None).unwrap(), ["1", "2", "3"]);
        assert_eq!(range("1", "6", Some("2")).unwrap(), ["1", "3", "5"]);
        assert_eq!(
            range("0", "0.3", Some("0.1")).unwrap(),
            ["0.0", "0.1", "0.2", "0.3"]
        );
        assert_eq!(
            range("-1", "0.5", Some("0.5")).unwrap(),
            ["-1.0", "-0.5", "0.0", "0.5"]
        );
        assert_eq!(range("7", "7", None).unwrap(), ["7"]);
        assert_eq!(range("1", "1000", None).unwrap().len(), 1000);
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        assert_eq!(range("3", "1", None), Err(ScanError::Empty("n".into())));
        assert_eq!(range("1", "3", Some("0")), Err(ScanError::Step("n".into())));
        assert_eq!(
            range("1", "3", Some("-1")),
            Err(ScanError::Step("n".into()))
        );
        assert_eq!(range("0.5", "3", None), Err(ScanError::NoStep("n".into())));
        assert_eq!(range("0", "1000", None), Err(ScanError::TooMany(1001)));
        let most = "999999999999999";
        assert!(matches!(
            range("0", most, Some("0.00000000000001")),
            Err(ScanError::TooMany(_))
        ));
        for text in [
            "",
            "-",
            ".",
            "x",
            "1e3",
            "nan",
            "1.2.3",
            "1234567890123456",
            "１",
        ] {
            let refused = range(text, "3", None);
            assert!(
                matches!(refused, Err(ScanError::Number { .. })),
                "{text}: {refused:?}"
            );
        }
    }

    #[test]
    fn lists_are_split_at_commas() {
        let list = |text| Parameter::list("k", text).map(|parameter| parameter.values);
        assert_eq!(list("a,b c,").unwrap(), ["a", "b c", ""]);
        assert_eq!(list(r"a\,b,c\\,\d").unwrap(), ["a,b", r"c\", r"\d"]);
        assert!(matches!(
            list("a,b,a"),
            Err(ScanError::DuplicateValue { .. })
        ));
        for name in ["", "a b", "{a}", "a}", "a=b"] {
            let refused = Parameter::list(name, "1,2");
            assert_eq!(refused, Err(ScanError::Name(name.into())));
        }
    }

    #[test]
    fn all_combinations_are_made_and_filled_in_once() {
        let a = Parameter::list("a", "1,{b}").unwrap();
        let b = Parameter::range("b", "1", "2", None).unwrap();
        let all = assignments(&[a.clone(), b]).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(all[3].fill_text("x{a}-{b}-{c}-{a"), "x{b}-2-{c}-{a");
        assert_eq!(all[0].fill(b"\xff{a}{"), b"\xff1{");
        assert!(mentions(b"--size={a}", "a") && !mentions(b"{ab}", "a"));
        assert_eq!(
            assignments(&[a.clone(), a]),
            Err(ScanError::Duplicate("a".into()))
        );
        assert_eq!(assignments(&[]).unwrap(), [Assignment::default()]);
        let many = |name| Parameter::range(name, "1", "32", None).unwrap();
        assert_eq!(
            assignments(&[many("a"), many("b")]),
            Err(ScanError::TooMany(1024))
        );
    }

    proptest! {
        #[test]
        fn nothing_panics(name in ".*", a in ".*", b in ".*", step in proptest::option::of(".*")) {
            let _ = Parameter::range(&name, &a, &b, step.as_deref());
            if let Ok(list) = Parameter::list(&name, &a) {
                for assignment in assignments(&[list]).unwrap_or_default() {
                    let _ = assignment.fill_text(&b);
                }
            }
        }
    }
}
