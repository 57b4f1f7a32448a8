//! Contents of the terminal.
//!
//! ```text
//!   superhue top  12 services, 143 processes, 3 may not be read
//!   memory   3.1 GiB of 23.5 GiB, anon 41 % huge; 12 coll/s 0 fault/s 0 split/s
//!   daemon   2 rules, hot 310 MiB, 12 coll/s, stalls 6.1 ms/s, takes 0.41 % of a CPU, 9.1 MiB
//!   itself   0.52 % of a CPU
//!   SERVICE                PROCS       RSS       PSS COVER HUGE+/s  AGE
//!   redis.service              1   1.1 GiB   1.1 GiB  98 %       0   0s
//!
//!   services (s) processes (p) objects (o)  ...
//! ```

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use superhue::MappingStatus;
use superhue::model::{ByteCount, ProcessId, counted};
use superhue_daemon::account::RuleAccount;
use superhue_measure::trial::words::signed;

use crate::terminal::printable;
use crate::top_args::ViewName;

use super::columns::{self, Column, age, bytes, percent, rate, size, stalled};
use super::daemon::{DaemonSample, DaemonState};
use super::gathered::{Detail, TopSnapshot};
use super::record::entry::ShownView;
use super::rows::{Rows, covered};
use super::state::{Playhead, State, ViewScope};

/// Number of lines above the table's own head, and below.
const HEAD: u16 = 4;
const FOOT: u16 = 1;
/// Columns of a process's mappings besides the address: resident, huge, its share, heat.
const MAPPING: [(&str, usize); 4] = [("RSS", 8), ("HUGE", 8), ("COVER", 5), ("HEAT", 5)];

/// Parts of the screen that a record lacks.
const NO_MAPPINGS: &str = "a record has no mappings";
pub const NO_OBJECTS: &str = "not recorded; superhue top objects --record does";

/// Rules whose measured gain is shown.
const GAINS_SHOWN: usize = 3;

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const TITLES: Style = BOLD.add_modifier(Modifier::UNDERLINED);
const TURNED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub fn draw(buffer: &mut Buffer, state: &mut State, shown: ShownView<'_>) {
    let ShownView {
        gathered,
        asked,
        rows,
    } = shown;
    let area = buffer.area;
    if area.height == 0 || area.width == 0 {
        return;
    }
    let head = if area.height > HEAD + FOOT + 3 {
        HEAD
    } else {
        0
    };
    if head > 0 {
        write(buffer, 0, 0, "superhue top", BOLD);
        let text = match &state.opened {
            ViewScope::Service(service) => of_service(service, rows),
            _ => summary(gathered, rows),
        };
        write(buffer, 14, 0, &text, PLAIN);
        let own = own(gathered, state.playhead.as_ref());
        for (line, text) in [machine(gathered), daemon(asked), own].iter().enumerate() {
            write(buffer, 0, 1 + u16::try_from(line).unwrap_or(0), text, PLAIN);
        }
    }
    let foot = if area.height > 2 { FOOT } else { 0 };
    let body = Rect {
        y: head,
        height: area.height - head - foot,
        ..area
    };
    if state.help {
        help(buffer, body, state.playhead.is_some());
    } else {
        match state.opened.clone() {
            ViewScope::Process(id, _) => process(buffer, body, state, gathered, rows, id),
            ViewScope::List if state.view == ViewName::Objects => {
                objects(buffer, body, state, gathered, rows);
            }
            _ => list(buffer, body, state, rows),
        }
    }
    if foot > 0 {
        keys(buffer, area.height - 1, state);
    }
}

fn summary(gathered: &TopSnapshot, rows: &Rows) -> String {
    if let Some(trouble) = &gathered.trouble {
        return trouble.clone();
    }
    let mut text = format!(
        "{}, {}",
        counted(rows.services.len() as u64, "service"),
        counted(rows.processes.len() as u64, "process")
    );
    let more = [
        (rows.denied, "may not be read"),
        (rows.failed, "cannot be read"),
        (rows.not_yet, "not read yet"),
        (gathered.unlisted, "too many to list"),
    ];
    for (count, what) in more {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

fn of_service(service: &str, rows: &Rows) -> String {
    let found = rows.services.iter().find(|row| &*row.name == service);
    let Some(row) = found else {
        return format!("{service} has no process any more");
    };
    let mut text = format!("{service}: {}", counted(row.processes, "process"));
    if row.processes_denied > 0 {
        text += &format!(", {} may not be read", row.processes_denied);
    }
    text
}

/// Returns a line about the machine's memory.
pub fn machine(gathered: &TopSnapshot) -> String {
    let machine = &gathered.machine;
    let used = machine.memory_bytes.zip(machine.available_bytes);
    let used = used.map(|(all, left)| ByteCount(all.0.saturating_sub(left.0)));
    #[allow(clippy::cast_precision_loss, reason = "a share")]
    let huge = (machine.anonymous_huge_bytes.zip(machine.anonymous_bytes))
        .filter(|(_, all)| all.0 > 0)
        .map(|(huge, all)| huge.0 as f64 / all.0 as f64);
    format!(
        "memory   {} of {}, anon {} huge; {} coll/s {} fault/s {} split/s",
        bytes(used),
        bytes(machine.memory_bytes),
        percent(huge),
        rate(machine.collapses_per_second),
        rate(machine.faults_per_second),
        rate(machine.splits_per_second),
    )
}

/// Returns a line about the daemon.
pub fn daemon(asked: &DaemonState) -> String {
    match asked {
        DaemonState::NotYet => "daemon   ...".to_owned(),
        DaemonState::Absent(why) => format!("daemon   {why}"),
        DaemonState::Here(answered) => of_daemon(answered),
    }
}

fn of_daemon(answered: &DaemonSample) -> String {
    let account = &answered.account;
    let mut text = format!("daemon   {}", counted(account.rules_total, "rule"));
    if account.paused {
        text += ", paused";
    }
    if account.config.error.is_some() {
        text += ", last reload refused";
    }
    let hot: Vec<ByteCount> = (account.rules.iter())
        .filter_map(|rule| rule.watch.as_ref()?.hot_set_bytes)
        .map(|[_, most, _]| most)
        .collect();
    if !hot.is_empty() {
        text += &format!(", hot {}", size(hot.into_iter().sum()));
    }
    if !answered.rules.is_empty() {
        let collapses = answered.rules.values().map(|rate| rate.collapses).sum();
        let share = answered.rules.values().map(|rate| rate.stalled).sum();
        text += &format!(
            ", {} coll/s, stalls {}/s",
            rate(Some(collapses)),
            stalled(share)
        );
    }
    if let Some(share) = answered.cpu_share {
        text += &format!(", takes {:.2} % of a CPU", share * 100.0);
    }
    if let Some(rss) = account.own.rss_bytes {
        text += &format!(", {}", size(rss));
    }
    text += &gains(&account.rules);
    let troubled = account.rules.iter().find_map(|rule| {
        let trouble = rule.watch.as_ref()?.trouble.as_ref()?;
        Some(format!("; rule {}: {trouble}", rule.name))
    });
    text + &troubled.unwrap_or_default()
}

/// Returns the gains that trials have measured, of a few rules; empty without any.
fn gains(rules: &[RuleAccount]) -> String {
    let measured = rules.iter().filter_map(|rule| {
        let gain = rule.trial.as_ref()?.gain?;
        Some(format!("{} {}", rule.name, signed(gain)))
    });
    let shown: Vec<String> = measured.take(GAINS_SHOWN).collect();
    match shown.is_empty() {
        true => String::new(),
        false => format!(", gain {}", shown.join(", ")),
    }
}

fn own(gathered: &TopSnapshot, playhead: Option<&Playhead>) -> String {
    let mut text = match playhead {
        Some(playhead) => format!("replay   {}; recorder ", playhead.position),
        None => "itself   ".to_owned(),
    };
    text += &gathered.own.share.map_or_else(
        || format!("{} ms of CPU so far", gathered.own.total.as_millis()),
        |share| format!("{:.2} % of a CPU", share * 100.0),
    );
    match &gathered.heat.tracker {
        Some(Ok(name)) => text += &format!("; tracks by {name}"),
        Some(Err(why)) => text += &format!("; cannot track: {why}"),
        None => {}
    }
    if let Some((why, count)) = gathered.heat.failed.iter().next() {
        text += &format!("; {} failed: {why}", counted(*count, "sample"));
    }
    if let Some((pid, time)) = gathered.held_up_by {
        let who = match pid {
            0 => "shared objects".to_owned(),
            pid => format!("process {pid}"),
        };
        text += &format!("; reading {who} has taken {} s", time.as_secs());
    } else if gathered.avoided > 0 {
        text += &format!("; {} took too long to be read", gathered.avoided);
    }
    text
}

/// Draws a table of services or processes.
fn list(buffer: &mut Buffer, area: Rect, state: &mut State, rows: &Rows) {
    let is_of_services = state.view == ViewName::Services && state.opened == ViewScope::List;
    let columns = if is_of_services {
        columns::of_services(rows)
    } else {
        columns::of_processes(rows)
    };
    let (name, columns) = columns::fitting(&columns, usize::from(area.width));
    let title = if is_of_services { "SERVICE" } else { "PROCESS" };
    head(buffer, area.y, title, name, &columns, state);
    let room = usize::from(area.height.saturating_sub(1));
    let fitting: Vec<Column> = columns.iter().map(|&(column, _)| column).collect();
    let shown = state.rows(rows, &fitting, room);
    let (selected, window) = state.window();
    for (line, index) in window.enumerate() {
        let row = shown[index];
        let y = area.y + 1 + u16::try_from(line).unwrap_or(u16::MAX);
        let texts = columns.iter().map(|&(column, _)| column.text(row));
        let texts: Vec<String> = texts.collect();
        line_of(
            buffer,
            y,
            &row.name,
            name,
            &columns,
            &texts,
            if index == selected { TURNED } else { PLAIN },
        );
    }
    if shown.is_empty() && area.height > 1 {
        let text = match (state.filter.is_empty(), &state.playhead) {
            (false, _) => "nothing has that in its name",
            (true, Some(_)) => "no process was recorded",
            (true, None) => "reading ...",
        };
        write(buffer, 0, area.y + 1, text, FAINT);
    }
}

fn objects(
    buffer: &mut Buffer,
    area: Rect,
    state: &mut State,
    gathered: &TopSnapshot,
    rows: &Rows,
) {
    let (name, columns) = columns::fitting(&columns::of_objects(), usize::from(area.width));
    head(buffer, area.y, "SHARED OBJECT", name, &columns, state);
    let room = usize::from(area.height.saturating_sub(2));
    let shown = state.objects(rows, room);
    let (selected, window) = state.window();
    for (line, index) in window.enumerate() {
        let object = shown[index];
        let y = area.y + 1 + u16::try_from(line).unwrap_or(u16::MAX);
        let texts = columns
            .iter()
            .map(|&(column, _)| column.text_of_object(object));
        let texts: Vec<String> = texts.collect();
        line_of(
            buffer,
            y,
            &object.name,
            name,
            &columns,
            &texts,
            if index == selected { TURNED } else { PLAIN },
        );
    }
    if area.height > 1 {
        let text = match &gathered.objects {
            None if state.playhead.is_some() => NO_OBJECTS.to_owned(),
            None => "reading ...".to_owned(),
            Some((_, Err(why))) => why.clone(),
            Some((at, Ok(_))) => format!(
                "{} of 2 MiB or more, as of {} ago",
                counted(rows.objects.len() as u64, "object"),
                age(gathered.at.saturating_sub(*at))
            ),
        };
        write(buffer, 0, area.bottom() - 1, &text, FAINT);
    }
}

/// Draws the mappings of a process.
fn process(
    buffer: &mut Buffer,
    area: Rect,
    state: &mut State,
    gathered: &TopSnapshot,
    rows: &Rows,
    id: ProcessId,
) {
    let row = rows
        .processes
        .iter()
        .find(|it| it.subject == super::rows::Subject::Process(id));
    let detail = gathered.detail.as_ref().filter(|it| it.pid == id.pid);
    let title = match row {
        Some(row) => format!("{} ({})  {}", row.name, id.pid, row.service),
        None if state.playhead.is_some() => format!("{} is not there at this time", id.pid),
        None => format!("{} has ended", id.pid),
    };
    write(buffer, 0, area.y, &title, BOLD);
    if let Some(row) = row {
        let text = format!(
            "pss {}, huge {} ({}), gains {}/s; daemon {} coll/s, stalls {}/s",
            bytes(row.pss_bytes),
            bytes(row.huge_bytes),
            percent(row.coverage),
            rate(row.gain_per_second),
            rate(row.collapses_per_second),
            row.stalled_share.map_or_else(|| "-".to_owned(), stalled),
        );
        write(buffer, 0, area.y + 1, &text, PLAIN);
        if let Some([half, most, nearly_all]) = row.hot_set_bytes {
            let text = format!(
                "hot  50 % of accesses to {}, 90 % to {}, 99 % to {}",
                size(half),
                size(most),
                size(nearly_all)
            );
            write(buffer, 0, area.y + 2, &text, PLAIN);
        }
    }
    let table = Rect {
        y: area.y + 3,
        height: area.height.saturating_sub(3),
        ..area
    };
    if table.height == 0 {
        return;
    }
    let status = match detail.map(|detail| (&detail.status, detail)) {
        None if state.playhead.is_some() => Err(NO_MAPPINGS.to_owned()),
        None => Err("reading ...".to_owned()),
        Some((Err(why), _)) => Err(why.clone()),
        Some((Ok(status), detail)) => Ok((status, detail)),
    };
    let (mappings, detail) = match &status {
        Ok((status, detail)) => (status.mappings.as_slice(), Some(*detail)),
        Err(why) => {
            write(buffer, 0, table.y, why, FAINT);
            (&[][..], None)
        }
    };
    let room = usize::from(table.height.saturating_sub(1));
    state.mappings(id, mappings.len(), room);
    if let Some(detail) = detail {
        mappings_table(buffer, table, state, gathered, detail, mappings);
    }
}

fn mappings_table(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    gathered: &TopSnapshot,
    detail: &Detail,
    mappings: &[MappingStatus],
) {
    let width = usize::from(area.width);
    let place = if width >= 72 { 28 } else { 0 };
    let columns: usize = MAPPING.iter().map(|(_, width)| width + 1).sum();
    let name_at = place + columns + 2;
    let mut title = String::new();
    if place > 0 {
        title = format!("{:<place$}", "MAPPING");
    }
    for (text, width) in MAPPING {
        title += &format!(" {text:>width$}");
    }
    title += &format!(
        "  NAME (as of {} ago)",
        age(gathered.at.saturating_sub(detail.at))
    );
    whole_line(buffer, area.y, &title, TITLES);
    let (selected, window) = state.window();
    for (line, index) in window.enumerate() {
        let mapping = &mappings[index];
        let covered = covered(mapping.huge_bytes, mapping.anonymous_bytes);
        let heat = detail.heat.get(&mapping.range.start).copied();
        let texts = [
            bytes(mapping.rss_bytes),
            bytes(mapping.all_huge()),
            percent(covered),
            percent(heat),
        ];
        let mut text = if place > 0 {
            format!("{:<place$}", mapping.range.to_string())
        } else {
            String::new()
        };
        for (part, (_, width)) in texts.iter().zip(MAPPING) {
            text += &format!(" {part:>width$}");
        }
        let y = area.y + 1 + u16::try_from(line).unwrap_or(u16::MAX);
        let style = if index == selected { TURNED } else { PLAIN };
        if index == selected {
            whole_line(buffer, y, "", TURNED);
        }
        write(buffer, 0, y, &text, style);
        let name = mapping.name.as_deref().unwrap_or("anonymous");
        let x = u16::try_from(name_at).unwrap_or(u16::MAX);
        write(buffer, x, y, name, style);
    }
}

fn head(
    buffer: &mut Buffer,
    y: u16,
    title: &str,
    name: usize,
    columns: &[(Column, usize)],
    state: &State,
) {
    let (sorted, reversed) = state.sorted_by();
    let titles = columns.iter().map(|&(column, _)| {
        let mark = match (column == sorted, reversed) {
            (false, _) => "",
            (true, false) => "\u{2193}",
            (true, true) => "\u{2191}",
        };
        format!("{mark}{}", column.title())
    });
    let titles: Vec<String> = titles.collect();
    line_of(buffer, y, title, name, columns, &titles, TITLES);
}

fn line_of(
    buffer: &mut Buffer,
    y: u16,
    title: &str,
    name: usize,
    columns: &[(Column, usize)],
    texts: &[String],
    style: Style,
) {
    whole_line(buffer, y, "", style);
    write_within(buffer, 0, y, name, title, style);
    let mut x = name;
    for (&(column, width), text) in columns.iter().zip(texts) {
        x += 1;
        let text = if column.is_left() {
            text.clone()
        } else {
            format!("{text:>width$}")
        };
        write_within(buffer, x, y, width, &text, style);
        x += width;
    }
}

fn help(buffer: &mut Buffer, area: Rect, is_replay: bool) {
    let mut lines: Vec<String> = Vec::new();
    if is_replay {
        let keys = "n b  N B  g     next, previous snapshot; a minute later, earlier; go to a time";
        lines.push(keys.to_owned());
    }
    lines.extend([
        "s p o Tab       services, processes, shared objects".to_owned(),
        "Enter, Escape   open: processes of a service, mappings of a process; back".to_owned(),
        "/               show only names that contain what is typed; Escape ends that".to_owned(),
        "< > r           sort by the column to the left or right; the other way round".to_owned(),
        "q, Control-C    end;  Control-Z suspend".to_owned(),
        String::new(),
    ]);
    let figures = Column::OF_SERVICES
        .into_iter()
        .filter(|column| !column.is_left());
    lines.extend(figures.map(|column| format!("{:<15} {}", column.title(), column.meaning())));
    lines.push("-               not known, or not allowed to be read".to_owned());
    for (line, text) in lines.iter().take(usize::from(area.height)).enumerate() {
        write(
            buffer,
            0,
            area.y + u16::try_from(line).unwrap_or(u16::MAX),
            text,
            PLAIN,
        );
    }
}

fn keys(buffer: &mut Buffer, y: u16, state: &State) {
    if state.is_typing {
        let text = format!("filter: {}_   Enter keeps it, Escape ends it", state.filter);
        write(buffer, 0, y, &text, BOLD);
        return;
    }
    if let Some(text) = state.playhead.as_ref().and_then(of_playhead) {
        write(buffer, 0, y, &text, BOLD);
        return;
    }
    let time = match state.playhead {
        Some(_) => "n/b step  N/B minute  g time  ",
        None => "",
    };
    let text = if state.help {
        "any key goes back  q end".to_owned()
    } else if let ViewScope::Process(..) = state.opened {
        format!("Escape back  Up/Down move  {time}h help  q end")
    } else {
        let back = if state.opened == ViewScope::List {
            ""
        } else {
            "Escape back  "
        };
        let filter = if state.filter.is_empty() {
            "/ filter".to_owned()
        } else {
            format!("/ filter ({})", state.filter)
        };
        match state.playhead {
            Some(_) => format!("{back}{time}s/p/o view  {filter}  h help  q end"),
            None => {
                format!(
                    "{back}s/p/o view  Enter open  {filter}  < > sort  r reverse  h help  q end"
                )
            }
        }
    };
    write(buffer, 0, y, &text, FAINT);
}

/// Returns the time that is typed, or the fault of the one before.
fn of_playhead(playhead: &Playhead) -> Option<String> {
    let typed = playhead.typed.as_ref();
    let typed = typed.map(|it| format!("time (UTC): {it}_   Enter goes there, Escape ends it"));
    typed.or_else(|| playhead.complaint.clone())
}

fn whole_line(buffer: &mut Buffer, y: u16, text: &str, style: Style) {
    let width = usize::from(buffer.area.width);
    write(buffer, 0, y, &" ".repeat(width), style);
    write(buffer, 0, y, text, style);
}

fn write_within(buffer: &mut Buffer, x: usize, y: u16, room: usize, text: &str, style: Style) {
    let Ok(x) = u16::try_from(x) else { return };
    if x >= buffer.area.width || y >= buffer.area.height {
        return;
    }
    let room = room.min(usize::from(buffer.area.width - x));
    let (end, _) = buffer.set_stringn(x, y, printable(text), room, style);
    // Marks a name that is cut off.
    if room > 1 && text.chars().count() > room && usize::from(end - x) == room {
        buffer.set_stringn(end - 1, y, "\u{2026}", 1, style);
    }
}

/// Writes a line as far as there is room.
fn write(buffer: &mut Buffer, x: u16, y: u16, text: &str, style: Style) {
    write_within(buffer, usize::from(x), y, usize::MAX, text, style);
}

#[cfg(test)]
mod tests;
