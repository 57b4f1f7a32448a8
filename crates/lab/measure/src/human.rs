//! Formats numbers and texts for people.

use crate::metric::Unit;

/// Unit and number of decimals for a group of values, so that people can compare them: `1.243 s` and `0.978 s`, never `1.243 s` and
/// `978 ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// Number by which values are divided before they are shown.
    pub divisor: f64,
    /// Text after the number, with a space before it where one belongs.
    pub suffix: String,
    /// Digits after the point.
    pub decimals: usize,
}

impl Scale {
    /// Returns the scale for values of this unit, of which `largest` is the greatest in magnitude.
    pub fn new(unit: &Unit, largest: f64) -> Self {
        const SECONDS: [(f64, &str); 4] =
            [(1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")];
        const BYTES: [(f64, &str); 5] = [
            ((1u64 << 40) as f64, " TiB"),
            ((1u64 << 30) as f64, " GiB"),
            ((1u64 << 20) as f64, " MiB"),
            ((1u64 << 10) as f64, " KiB"),
            (1.0, " B"),
        ];
        const MANY: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1.0, "")];
        let largest = largest.abs();
        let (units, rest): (&[(f64, &str)], String) = match unit {
            Unit::Seconds => (&SECONDS, String::new()),
            Unit::Bytes => (&BYTES, String::new()),
            Unit::Share => (&[(0.01, " %")], String::new()),
            Unit::Count => (&MANY, String::new()),
            Unit::PerSecond => (&MANY, "/s".to_owned()),
            Unit::Plain(name) if name.is_empty() => (&MANY, String::new()),
            Unit::Plain(name) => (&MANY, format!(" {}", clean(name))),
        };
        let chosen = if largest == 0.0 {
            // All values are zero: take the plain unit, which has size 1 (or is the only one).
            units.iter().find(|(size, _)| *size == 1.0)
        } else {
            units.iter().find(|(size, _)| largest >= *size)
        };
        let (divisor, name) = chosen.or(units.last()).copied().unwrap_or((1.0, ""));
        Self {
            divisor,
            suffix: format!("{name}{rest}"),
            decimals: match unit {
                Unit::Share => 1,
                _ => decimals_for(largest / divisor),
            },
        }
    }

    /// Drops the decimals of whole numbers below a million.
    pub fn whole(mut self) -> Self {
        if self.divisor == 1.0 {
            self.decimals = 0;
        }
        self
    }

    /// Formats the value with its unit: `1.243 s`.
    pub fn show(&self, value: f64) -> String {
        format!("{}{}", self.number(value), self.suffix)
    }

    /// Formats the value without its unit: `1.243`.
    pub fn number(&self, value: f64) -> String {
        if value == 0.0 {
            return "0".to_owned();
        }
        grouped(value / self.divisor, self.decimals)
    }

    /// Formats a difference, with its sign and without its unit: `+1.243`.
    pub fn signed(&self, value: f64) -> String {
        let number = self.number(value);
        if value > 0.0 {
            format!("+{number}")
        } else {
            number
        }
    }
}

/// Returns the digits after the point that make four significant ones; at most six.
fn decimals_for(largest: f64) -> usize {
    if largest == 0.0 {
        return 0;
    }
    (3.0 - largest.log10().floor()).clamp(0.0, 6.0) as usize
}

/// Formats a number with thousands separators: `-12,345.6`.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    if value < 0.0 && text.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        out.push('-');
    }
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

/// Formats a ratio with decimals that keep it apart from 1: `0.787`, `12.3`, `1,024`.
pub fn ratio(value: f64) -> String {
    let decimals = match value {
        v if v < 10.0 => 3,
        v if v < 100.0 => 1,
        _ => 0,
    };
    grouped(value, decimals)
}

/// Formats a share in percent: `27 %`, or `4.8 %` below ten.
pub fn percent(share: f64) -> String {
    let percent = share.abs() * 100.0;
    // 9.96 would round to "10.0".
    let decimals = usize::from(percent < 9.95);
    format!("{} %", grouped(percent, decimals))
}

/// Formats a share that the user chose, in percent with up to two decimals: `2 %`, `98.75 %`.
pub fn exact_percent(share: f64) -> String {
    format!("{} %", (share * 10_000.0).round() / 100.0)
}

/// Cleans text from outside for a terminal, a table cell and XML: replaces control characters.
pub fn clean(text: &str) -> String {
    let visible = |c: char| {
        if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(visible).collect()
}

/// Shortens in the middle, where names differ least: `--pages hot … --budget 5%`.
pub fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let (head, tail) = (keep.div_ceil(2), keep / 2);
    let mut out: String = text.chars().take(head).collect();
    out.push('…');
    out.extend(text.chars().skip(length - tail));
    out
}

/// Puts a number before every name if one of them is too long to be shown whole, because two shortened names often look the same.
pub fn numbered(names: Vec<String>, too_long: impl Fn(&String) -> bool) -> Vec<String> {
    if !names.iter().any(too_long) {
        return names;
    }
    let number = |(index, name)| format!("{}: {name}", index + 1);
    names.into_iter().enumerate().map(number).collect()
}

/// Joins a list: `a`, `a and b`, `a, b and c`.
pub fn listed(parts: &[String], joined_by: &str) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} {joined_by} {last}", first.join(", ")),
    }
}

/// Formats a command as one line, with quotes where an argument needs them; `comparison` if there is none.
pub fn command_line(command: &[String]) -> String {
    if command.is_empty() {
        return "comparison".to_owned();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let argument = |text: &String| {
        if !text.is_empty() && text.chars().all(plain) {
            text.clone()
        } else {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
    };
    clean(&command.iter().map(argument).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_with_their_unit() {
        let show = |unit: Unit, value| Scale::new(&unit, value).show(value);
        assert_eq!(show(Unit::Seconds, 1.2434), "1.243 s");
        assert_eq!(show(Unit::Seconds, 0.0123), "12.30 ms");
        assert_eq!(show(Unit::Seconds, 314.15), "314.1 s");
        assert_eq!(show(Unit::Seconds, 4e-10), "0.4000 ns");
        assert_eq!(show(Unit::Seconds, 0.0), "0 s");
        assert_eq!(show(Unit::Bytes, 3.5 * 1024.0 * 1024.0), "3.500 MiB");
        assert_eq!(show(Unit::Bytes, 0.0), "0 B");
        assert_eq!(show(Unit::Share, 0.973), "97.3 %");
        assert_eq!(show(Unit::Share, 0.0), "0 %");
        assert_eq!(show(Unit::Count, 12_345.0), "12,345");
        assert_eq!(show(Unit::Count, 1.5e6), "1.500 M");
        assert_eq!(show(Unit::PerSecond, 2.5e9), "2.500 G/s");
        assert_eq!(show(Unit::PerSecond, 250.0), "250.0/s");
        assert_eq!(show(Unit::Plain("pt".into()), -12.5), "-12.50 pt");
        assert_eq!(show(Unit::Plain(String::new()), 0.00123), "0.001230");
        assert_eq!(Scale::new(&Unit::Count, 12.0).whole().show(12.0), "12");
    }

    #[test]
    fn one_scale_serves_a_group() {
        let scale = Scale::new(&Unit::Seconds, 1.2434);
        assert_eq!(scale.show(0.978_12), "0.978 s");
        assert_eq!(scale.signed(-0.2), "-0.200");
        assert_eq!(scale.signed(0.2), "+0.200");
        assert_eq!(scale.signed(0.0), "0");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(1_234_567.891, 1), "1,234,567.9");
        assert_eq!(grouped(-999.0, 0), "-999");
        assert_eq!(grouped(-0.001, 1), "0.0");
        assert_eq!(ratio(0.7871), "0.787");
        assert_eq!(ratio(12.34), "12.3");
        assert_eq!(ratio(1024.4), "1,024");
        assert_eq!(percent(0.27), "27 %");
        assert_eq!(percent(-0.048), "4.8 %");
        assert_eq!(percent(0.0996), "10 %");
        assert_eq!(exact_percent(0.02), "2 %");
        assert_eq!(exact_percent(1.0 - 0.0125), "98.75 %");
    }

    #[test]
    fn texts_are_made_fit() {
        assert_eq!(clean("a\x1b[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
        assert_eq!(shorten("abcdefghij", 5), "ab…ij");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("abc", 1), "…");
        let names = || vec!["short".to_owned(), "quite long".to_owned()];
        assert_eq!(numbered(names(), |name| name.len() > 10), names());
        let numbered = numbered(names(), |name| name.len() > 9);
        assert_eq!(numbered, ["1: short", "2: quite long"]);
        let parts = |n: usize| {
            ["a", "b", "c"][..n]
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let list = |n| listed(&Vec::<String>::clone(&parts(n)), "and");
        assert_eq!((list(0), list(1)), (String::new(), "a".into()));
        assert_eq!((list(2), list(3)), ("a and b".into(), "a, b and c".into()));
        let command = ["./x", "-n", "a b", "", "it's"].map(str::to_owned);
        assert_eq!(command_line(&[]), "comparison");
        assert_eq!(command_line(&command), r"./x -n 'a b' '' 'it'\''s'");
    }
}
