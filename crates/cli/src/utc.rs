//! Times of a record: as people write them (`--at`), and as they are shown. All are UTC, in the proleptic Gregorian calendar.

use std::time::{Duration, SystemTime};

use superhue::model::parse_duration;

/// Seconds of a day.
const DAY: u64 = 86_400;
/// Last second that is shown: the end of the year 9999.
pub const MAX_SECONDS: u64 = 253_402_300_799;

/// A time in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTime {
    /// Seconds since 1970.
    At(u64),
    /// Seconds since midnight, on the last day of the record that has this time.
    OfDay(u64),
    /// Time after the first snapshot.
    AfterStart(Duration),
    /// Time before the last snapshot.
    BeforeEnd(Duration),
}

/// Reads a time: `2026-11-28 10:30`, `10:30:05`, `@1795861800`, `+10m`, `-90s`.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn parse(text: &str) -> Result<RecordTime, String> {
    let text = text.trim();
    let distance = |text: &str| parse_duration(text);
    if let Some(after) = text.strip_prefix('+') {
        return distance(after).map(RecordTime::AfterStart);
    }
    if let Some(before) = text.strip_prefix('-') {
        return distance(before).map(RecordTime::BeforeEnd);
    }
    let found = match text.strip_prefix('@') {
        Some(seconds) => number(seconds, MAX_SECONDS).map(RecordTime::At),
        None => of_calendar(text),
    };
    found.ok_or_else(|| {
        format!(
            "`{text}` is not a time: write e.g. 2026-11-28T10:30 or 10:30:05 (UTC), @1795861800 (seconds since 1970), \
             +10m (after the start) or -90s (before the end)"
        )
    })
}

/// Reads a time of day, with or without a date before it.
fn of_calendar(text: &str) -> Option<RecordTime> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let Some((date, time)) = text.split_once(['T', ' ']) else {
        return of_day(text).map(RecordTime::OfDay);
    };
    let seconds = midnight(date)? + of_day(time)?;
    Some(RecordTime::At(seconds))
}

/// Reads `10:30` or `10:30:05`, as seconds since midnight.
fn of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let hours = number(parts.next()?, 23)?;
    let minutes = number(parts.next()?, 59)?;
    let seconds = parts.next().map_or(Some(0), |text| number(text, 59))?;
    let is_all = parts.next().is_none();
    is_all.then_some(hours * 3600 + minutes * 60 + seconds)
}

/// Reads `2026-11-28`, as seconds from 1970 to the beginning of that day.
fn midnight(text: &str) -> Option<u64> {
    let mut parts = text.split('-');
    let year = number(parts.next()?, 9999)?;
    let month = number(parts.next()?, 12)?;
    let day = number(parts.next()?, 31)?;
    if parts.next().is_some() {
        return None;
    }
    let text = format!("{year:04}-{month:02}-{day:02}T00:00:00Z");
    let time = humantime::parse_rfc3339(&text).ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// Reads digits, as a number of at most `most`.
fn number(text: &str, most: u64) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.filter(|&number| number <= most)
}

/// Returns the time since 1970; `None` if the clock is set to an earlier one.
#[must_use]
pub fn now() -> Option<Duration> {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
}

/// Formats seconds since 1970 as `2026-11-28 10:30:05`. Later times than the year 9999 are shown as its end.
#[must_use]
pub fn shown(seconds: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(MAX_SECONDS));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.trim_end_matches('Z').replacen('T', " ", 1)
}

impl RecordTime {
    /// Returns the time in seconds since 1970, in a record from `first` to `last`. It may be outside of the record.
    #[must_use]
    pub fn within(self, first: u64, last: u64) -> u64 {
        match self {
            Self::At(seconds) => seconds,
            Self::OfDay(time) => {
                let today = last - last % DAY + time;
                let before = today.checked_sub(DAY).filter(|&before| before >= first);
                // The record ended earlier that day.
                before.filter(|_| today > last).unwrap_or(today)
            }
            Self::AfterStart(after) => first.saturating_add(after.as_secs()),
            Self::BeforeEnd(before) => last.saturating_sub(before.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        // By `date -u -d TEXT +%s`.
        for (text, seconds) in [
            ("1970-01-01 00:00:00", 0),
            ("2000-02-29 23:59:59", 951_868_799),
            ("2026-11-28 10:30:05", 1_795_861_805),
            ("2100-03-01 00:00:00", 4_107_542_400),
            ("9999-12-31 23:59:59", MAX_SECONDS),
        ] {
            assert_eq!(parse(text), Ok(RecordTime::At(seconds)), "{text}");
            assert_eq!(shown(seconds), text);
            assert_eq!(
                parse(&format!("@{seconds}")),
                Ok(RecordTime::At(seconds)),
                "{text}"
            );
        }
        assert_eq!(shown(u64::MAX), shown(MAX_SECONDS));
        let half_past = Ok(RecordTime::At(1_795_861_800));
        assert_eq!(parse("2026-11-28T10:30Z"), half_past);
        assert_eq!(parse(" 2026-11-28T10:30:00 "), half_past);
        assert_eq!(parse("10:30:05"), Ok(RecordTime::OfDay(37_805)));
        assert_eq!(parse("00:00"), Ok(RecordTime::OfDay(0)));
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        assert_eq!(parse("+10m"), Ok(RecordTime::AfterStart(minutes(10))));
        assert_eq!(parse("-1h"), Ok(RecordTime::BeforeEnd(minutes(60))));
    }

    #[test]
    fn other_texts_are_refused() {
        for wrong in [
            "",
            "now",
            "10",
            "10:60",
            "24:00",
            "1:2:3:4",
            "2026-02-29 10:00",
            "2026-13-01 10:00",
            "2026-00-01 10:00",
            "2026-11-00 10:00",
            "2026-11-31 10:00",
            "2026-11-28",
            "2026-11-28 ",
            "2026-11-28-1 10:00",
            "1969-12-31 23:59",
            "@",
            "@-1",
            "@253402300800",
            "@99999999999999999999",
            "+",
            "+5",
            "-x",
            "1 0:30",
            "10:+3",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains("is not a time"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_time_is_found_within_a_record() {
        // From 22:00 to 01:00 of the next day.
        let (first, last) = (22 * 3600, DAY + 3600);
        let at = |text: &str| parse(text).unwrap().within(first, last);
        assert_eq!(at("23:30"), 23 * 3600 + 1800);
        assert_eq!(at("00:30"), DAY + 1800);
        assert_eq!(at("01:00"), last);
        assert_eq!(at("+1h"), 23 * 3600);
        assert_eq!(at("-2h"), 23 * 3600);
        assert_eq!(at("-1000h"), 0);
        assert_eq!(
            parse("10:00").unwrap().within(0, 3600),
            36_000,
            "the first day has none before it"
        );
    }
}
