//! The columns of the tables: their contents, their widths, and the order in which they are left out for lack of room.

use std::cmp::Ordering;
use std::time::Duration;

use superhue::SharedObject;
use superhue::model::ByteCount;

use super::rows::{Row, Rows, Subject};

/// Least width of the name, and the width between columns.
const NAME: usize = 14;
const GAP: usize = 1;

/// A column beside the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Pid,
    Processes,
    Resident,
    Pss,
    Huge,
    Coverage,
    Hot,
    Cpu,
    Gain,
    Collapses,
    Stalled,
    Age,
    Service,
    Rule,
    Mappers,
    HugeIn,
    Saved,
    Note,
}

impl Column {
    /// All that services can have, in order.
    pub const OF_SERVICES: [Self; 12] = [
        Self::Processes,
        Self::Resident,
        Self::Pss,
        Self::Huge,
        Self::Coverage,
        Self::Hot,
        Self::Cpu,
        Self::Gain,
        Self::Collapses,
        Self::Stalled,
        Self::Age,
        Self::Rule,
    ];

    /// Returns its title.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Processes => "PROCS",
            Self::Resident => "RSS",
            Self::Pss => "PSS",
            Self::Huge => "HUGE",
            Self::Coverage => "COVER",
            Self::Hot => "HOT",
            Self::Cpu => "CPU",
            Self::Gain => "HUGE+/s",
            Self::Collapses => "COLL/s",
            Self::Stalled => "STALL/s",
            Self::Age => "AGE",
            Self::Service => "SERVICE",
            Self::Rule => "RULE",
            Self::Mappers => "MAPPED BY",
            Self::HugeIn => "HUGE IN",
            Self::Saved => "TABLES SAVED",
            Self::Note => "NOTE",
        }
    }

    /// Returns its meaning.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Pid => "number of the process",
            Self::Processes => "processes; + if some were not read yet or may not be",
            Self::Resident => "resident memory; what processes share counts for each",
            Self::Pss => "the same, each page divided by those who map it",
            Self::Huge => "anonymous memory on huge pages",
            Self::Coverage => "share of the anonymous memory that is on huge pages",
            Self::Hot => "memory that gets 90 % of the accesses (daemon, or --track)",
            Self::Cpu => "CPU time since the last read, as a share of one CPU",
            Self::Gain => "huge pages gained per second, by superhue or the kernel",
            Self::Collapses => "collapses per second by the daemon",
            Self::Stalled => "time they held the program up, per second",
            Self::Age => "age of the oldest figure in the line",
            Self::Service => "unit or cgroup",
            Self::Rule => "the daemon's rules",
            Self::Mappers => "processes that map it",
            Self::HugeIn => "of those that were read, how many on huge pages",
            Self::Saved => "page tables that huge pages save",
            Self::Note => "what stands in the way",
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Pid => 7,
            Self::Processes => 6,
            Self::Resident | Self::Pss | Self::Huge | Self::Hot => 8,
            Self::Coverage => 5,
            Self::Cpu => 6,
            Self::Gain | Self::Collapses => 7,
            Self::Stalled => 8,
            Self::Age => 4,
            Self::Service => 24,
            Self::Rule => 16,
            Self::Mappers | Self::HugeIn => 9,
            Self::Saved => 12,
            Self::Note => 22,
        }
    }

    /// Returns its rank: columns with the greatest rank are left out first.
    #[must_use]
    pub fn rank(self) -> u8 {
        match self {
            Self::Pid | Self::Resident => 0,
            Self::Coverage => 1,
            Self::Hot | Self::Mappers => 2,
            Self::Collapses | Self::HugeIn => 3,
            Self::Pss => 4,
            Self::Stalled | Self::Saved => 5,
            Self::Gain => 6,
            Self::Processes => 7,
            Self::Cpu => 8,
            Self::Huge | Self::Note => 9,
            Self::Age => 10,
            Self::Rule => 11,
            Self::Service => 12,
        }
    }

    /// Returns true if its text is aligned to the left.
    #[must_use]
    pub fn is_left(self) -> bool {
        matches!(self, Self::Service | Self::Rule | Self::Note)
    }

    /// Returns its text for a service or process.
    #[must_use]
    pub fn text(self, row: &Row) -> String {
        match self {
            Self::Pid => match row.subject {
                Subject::Process(id) => id.pid.to_string(),
                _ => String::new(),
            },
            Self::Processes => {
                let is_all = row.processes == row.processes_read;
                format!("{}{}", row.processes, if is_all { "" } else { "+" })
            }
            Self::Resident => size(row.resident_bytes),
            Self::Pss => bytes(row.pss_bytes),
            Self::Huge => bytes(row.huge_bytes),
            Self::Coverage => percent(row.coverage),
            Self::Hot => bytes(row.hot_set_bytes.map(|[_, most, _]| most)),
            Self::Cpu => row.cpu_share.map_or_else(none, cpu),
            Self::Gain => rate(row.gain_per_second),
            Self::Collapses => rate(row.collapses_per_second),
            Self::Stalled => row.stalled_share.map_or_else(none, stalled),
            Self::Age => row.age.map_or_else(none, age),
            Self::Service => row.service.to_string(),
            Self::Rule => row.rules.join(","),
            Self::Mappers | Self::HugeIn | Self::Saved | Self::Note => String::new(),
        }
    }

    /// Returns its text for a shared object.
    #[must_use]
    pub fn text_of_object(self, object: &SharedObject) -> String {
        let huge = &object.huge_mapped_bytes;
        match self {
            Self::Resident => size(object.resident_bytes),
            Self::Huge => size(object.most_huge_mapped()),
            Self::Mappers => object.mappers.to_string(),
            Self::HugeIn => {
                let with = huge.values().filter(|huge| huge.0 > 0).count();
                format!("{with} of {}", huge.len())
            }
            Self::Saved => size(object.page_tables_saved_bytes),
            Self::Note => (object.misaligned_by_bytes)
                .map_or_else(String::new, |by| format!("misaligned by {by:#x}")),
            _ => String::new(),
        }
    }

    /// Compares rows by this column: the most first, unknown values last, equal ones by name.
    #[must_use]
    pub fn order(self, a: &Row, b: &Row) -> Ordering {
        let number = |row: &Row| -> Option<f64> {
            #[allow(clippy::cast_precision_loss, reason = "only compared")]
            let of = |bytes: Option<ByteCount>| bytes.map(|it| it.0 as f64);
            #[allow(clippy::cast_precision_loss, reason = "only compared")]
            match self {
                Self::Pid => match row.subject {
                    Subject::Process(id) => Some(-f64::from(id.pid)),
                    _ => None,
                },
                Self::Processes => Some(row.processes as f64),
                Self::Pss => of(row.pss_bytes),
                Self::Huge => of(row.huge_bytes),
                Self::Coverage => row.coverage,
                Self::Hot => of(row.hot_set_bytes.map(|[_, most, _]| most)),
                Self::Cpu => row.cpu_share,
                Self::Gain => row.gain_per_second,
                Self::Collapses => row.collapses_per_second,
                Self::Stalled => row.stalled_share,
                Self::Age => row.age.map(|age| age.as_secs_f64()),
                _ => of(Some(row.resident_bytes)),
            }
        };
        let by_text = match self {
            Self::Service => a.service.cmp(&b.service),
            Self::Rule => (a.rules.is_empty(), &a.rules).cmp(&(b.rules.is_empty(), &b.rules)),
            _ => match (number(a), number(b)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            },
        };
        by_text
            .then_with(|| b.resident_bytes.cmp(&a.resident_bytes))
            .then_with(|| a.name.cmp(&b.name))
            .then_with(|| a.subject.cmp(&b.subject))
    }

    /// The same for shared objects.
    #[must_use]
    pub fn order_of_objects(self, a: &SharedObject, b: &SharedObject) -> Ordering {
        let number = |it: &SharedObject| match self {
            Self::Huge => it.most_huge_mapped().0,
            Self::Mappers => it.mappers,
            Self::HugeIn => it.huge_mapped_bytes.values().filter(|it| it.0 > 0).count() as u64,
            Self::Saved => it.page_tables_saved_bytes.0,
            Self::Note => it.misaligned_by_bytes.unwrap_or_default(),
            _ => it.resident_bytes.0,
        };
        (number(b).cmp(&number(a)))
            .then_with(|| b.resident_bytes.cmp(&a.resident_bytes))
            .then_with(|| a.object.cmp(&b.object))
    }
}

/// Returns the columns of services that have any value: figures that only a daemon or tracker knows have no column without one.
#[must_use]
pub fn of_services(rows: &Rows) -> Vec<Column> {
    let has = |column: &Column| match column {
        Column::Hot => rows.has(|row| row.hot_set_bytes.is_some()),
        Column::Collapses | Column::Stalled => rows.has(|row| row.collapses_per_second.is_some()),
        Column::Rule => rows.has(|row| !row.rules.is_empty()),
        _ => true,
    };
    Column::OF_SERVICES.into_iter().filter(has).collect()
}

/// Returns the columns of processes that have any value.
#[must_use]
pub fn of_processes(rows: &Rows) -> Vec<Column> {
    let mut columns = of_services(rows);
    columns.retain(|&column| column != Column::Processes);
    columns.insert(0, Column::Pid);
    columns.push(Column::Service);
    columns
}

/// Returns the columns of shared objects.
#[must_use]
pub fn of_objects() -> Vec<Column> {
    vec![
        Column::Resident,
        Column::Mappers,
        Column::HugeIn,
        Column::Huge,
        Column::Saved,
        Column::Note,
    ]
}

/// Returns the columns for which there is room beside the name, with their widths, and the resulting width of the name.
#[must_use]
pub fn fitting(columns: &[Column], room: usize) -> (usize, Vec<(Column, usize)>) {
    let width = |columns: &[Column]| -> usize { columns.iter().map(|it| it.width() + GAP).sum() };
    let mut kept = columns.to_vec();
    while width(&kept) + NAME > room {
        let Some(worst) = kept.iter().map(|it| it.rank()).max() else {
            break;
        };
        kept.retain(|it| it.rank() != worst);
    }
    let name = room.saturating_sub(width(&kept));
    (name, kept.into_iter().map(|it| (it, it.width())).collect())
}

fn none() -> String {
    "-".to_owned()
}

/// Formats a size with two or three significant digits, in 8 characters.
#[must_use]
pub fn size(bytes: ByteCount) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes.0 == 0 {
        return "0".to_owned();
    }
    #[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
    let mut value = bytes.0 as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 0.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats a size, if it is known.
#[must_use]
pub fn bytes(bytes: Option<ByteCount>) -> String {
    bytes.map_or_else(none, size)
}

/// Formats a share, if it is known.
#[must_use]
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(none, |share| format!("{:.0} %", share * 100.0))
}

/// Formats a rate per second, if it is known.
#[must_use]
pub fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(none, |rate| match rate {
        0.0 => "0".to_owned(),
        rate if rate.abs() < 9.95 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    })
}

/// Formats a share of one CPU, which is above 1 for a program that uses several.
#[must_use]
pub fn cpu(share: f64) -> String {
    match share {
        0.0 => "0 %".to_owned(),
        share if share < 0.0995 => format!("{:.1} %", share * 100.0),
        share => format!("{:.0} %", share * 100.0),
    }
}

/// Formats a share of time, as time per second.
#[must_use]
pub fn stalled(share: f64) -> String {
    match share {
        0.0 => "0".to_owned(),
        share if share < 0.001 => format!("{:.0} us", share * 1e6),
        share if share < 0.1 => format!("{:.1} ms", share * 1e3),
        share => format!("{:.0} ms", share * 1e3),
    }
}

/// Formats an age, in whole seconds.
#[must_use]
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..=99 => format!("{seconds}s"),
        seconds @ 100..=5999 => format!("{}m", seconds / 60),
        seconds => format!("{}h", (seconds / 3600).min(999)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_least_is_left_out_first() {
        let all = Column::OF_SERVICES;
        let at = |room| {
            let (name, kept) = fitting(&all, room);
            let width: usize = kept.iter().map(|(_, width)| width + GAP).sum();
            assert!(name + width == room.max(width), "{room}");
            (
                name,
                kept.into_iter()
                    .map(|(column, _)| column)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(at(200).1, all);
        let (name, kept) = at(80);
        assert!(name >= NAME);
        assert!(
            kept.contains(&Column::Hot) && kept.contains(&Column::Collapses),
            "{kept:?}"
        );
        assert!(!kept.contains(&Column::Rule) && !kept.contains(&Column::Age));
        // CPU time, which other programs show, leaves before the number of processes, which shows that a line is incomplete.
        assert!(kept.contains(&Column::Processes) && !kept.contains(&Column::Cpu));
        let (_, kept) = at(86);
        assert!(kept.contains(&Column::Cpu) && !kept.contains(&Column::Huge));
        assert_eq!(at(24).1, [Column::Resident]);
        assert_eq!(at(10).1, []);
        assert_eq!(at(0).1, []);
    }

    #[test]
    fn figures_fit_their_columns() {
        for (text, width) in [
            (bytes(Some(ByteCount(1023 << 20))), 8),
            (bytes(Some(ByteCount((99 << 30) + (1023 << 20)))), 8),
            (bytes(Some(ByteCount(u64::MAX))), 9),
            (percent(Some(1.0)), 5),
            (rate(Some(-1234.5)), 7),
            (cpu(0.0994), 6),
            (cpu(99.99), 7),
            (stalled(0.099_99), 8),
            (stalled(1.0), 8),
            (age(Duration::from_secs(99)), 4),
            (age(Duration::from_secs(5999)), 4),
            (age(Duration::from_secs(u64::MAX)), 4),
        ] {
            assert!(text.chars().count() <= width, "{text}");
        }
        let shares = [0.0, 0.0004, 0.0994, 0.0996, 1.0, 15.996].map(cpu);
        let expected = ["0 %", "0.0 %", "9.9 %", "10 %", "100 %", "1600 %"];
        assert_eq!(shares, expected);
        assert_eq!(rate(Some(0.04)), "0.0");
        assert_eq!(
            (rate(None), percent(None), bytes(None)),
            (none(), none(), none())
        );
        assert_eq!(stalled(0.0123), "12.3 ms");
        let sizes = [0, 4096, 1 << 20, 905 << 20, 1023 << 20, 1 << 40].map(ByteCount);
        let expected = ["0", "4 KiB", "1.0 MiB", "905 MiB", "1.0 GiB", "1.0 TiB"];
        assert_eq!(sizes.map(size), expected);
        assert_eq!(size(ByteCount(1001 << 20)), "0.98 GiB");
    }
}
