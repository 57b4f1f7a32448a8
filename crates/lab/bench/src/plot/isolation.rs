//! Plot of victims and partners: job times, one row for each case.

use superhue_compare::plot::axis::Axis;
use superhue_measure::Unit;
use superhue_plot::svg::{Anchor, Ink, Svg};

use super::{HEADER, LABEL_SIZE, LINE, MARGIN, TEXT_SIZE, WIDTH, footer, header, legend};
use crate::document::Document;
use crate::document::isolation::{Case, Isolation, JobSummary, Partition};
use crate::findings::of_isolation;

const ROW: i32 = 15;
const LEFT: i32 = MARGIN + 230;
const RIGHT: i32 = WIDTH - MARGIN - 70;
/// Distance between two victims.
const GAP: i32 = 44;

/// Cases of one victim, grouped by partner.
type Panel<'a> = Vec<Vec<&'a Case>>;

pub(super) fn draw(document: &Document, result: &Isolation) -> String {
    let said = of_isolation(result);
    let panels = panels(result);
    let panel_height = |panel: &Panel<'_>| {
        panel
            .iter()
            .map(|group| group.len() as i32 * ROW + 6)
            .sum::<i32>()
            + LINE
            + GAP
    };
    let bottom = HEADER + panels.iter().map(panel_height).sum::<i32>();
    let height = bottom + said.len() as i32 * LINE + MARGIN / 2;
    let title = "isolation: a victim's jobs while a partner has the CPU in between";
    let marks = "µs of CPU time of a job, lower is better. Thick: median. Bar: to p99.9, tick at p99. Circle, and figure at the right: worst.";
    let mut svg = Svg::new(WIDTH, height, title);
    header(&mut svg, document, title, marks);
    let placements = Partition::ALL.map(|placement| (ink(placement), placement.name()));
    legend(&mut svg, LEFT, placements);
    let mut top = HEADER;
    for panel in &panels {
        draw_panel(&mut svg, panel, top, top + panel_height(panel) - GAP);
        top += panel_height(panel);
    }
    footer(&mut svg, &said, bottom);
    svg.finish()
}

fn ink(placement: Partition) -> Ink {
    match placement {
        Partition::Kernel => Ink::Arm(0),
        Partition::Colored => Ink::Arm(2),
        Partition::Shuffled => Ink::Arm(3),
    }
}

/// Groups cases by victim, then by partner; all cases of a victim must be adjacent.
fn panels(result: &Isolation) -> Vec<Panel<'_>> {
    let victim = |case: &Case| (case.victim.clone(), case.victim_bytes);
    let partner = |case: &Case| (case.partner.clone(), case.partner_cpu);
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for case in &result.cases {
        let last = panels.last_mut().filter(|panel| {
            panel
                .first()
                .and_then(|group| group.first())
                .is_some_and(|other| victim(other) == victim(case))
        });
        let Some(panel) = last else {
            panels.push(vec![vec![case]]);
            continue;
        };
        match panel.iter_mut().find(|group| {
            group
                .first()
                .is_some_and(|other| partner(other) == partner(case))
        }) {
            Some(group) => group.push(case),
            None => panel.push(vec![case]),
        }
    }
    panels
}

fn draw_panel(svg: &mut Svg, panel: &Panel<'_>, top: i32, bottom: i32) {
    let cases = || panel.iter().flatten();
    if let Some(case) = cases().next() {
        let name = format!("{}, {} KiB", case.victim, case.victim_bytes >> 10);
        svg.bold_below(MARGIN, top, TEXT_SIZE, Ink::Text, &name);
    }
    let ends = cases()
        .filter_map(|case| case.summary.as_ref())
        .map(|summary| summary.p999);
    let axis = Axis::new(
        &Unit::Seconds,
        &ends.chain([0.0]).collect::<Vec<f64>>(),
        |ticks, _| ticks <= 8,
    );
    let x = |value: f64| LEFT + (axis.place(value) * f64::from(RIGHT - LEFT)) as i32;
    for (value, label) in &axis.ticks {
        let at = x(*value);
        svg.line((at, top + LINE), (at, bottom), Ink::Grid, 1.0);
        let label = format!("{label} {}", axis.unit);
        svg.text_below(
            at,
            bottom + 4,
            LABEL_SIZE,
            Anchor::Middle,
            Ink::Text,
            &label,
        );
    }
    let mut y = top + LINE;
    for group in panel {
        if let Some(case) = group.first() {
            svg.text_below(
                MARGIN + 12,
                y + ROW,
                TEXT_SIZE,
                Anchor::Left,
                Ink::Text,
                &case.beside(),
            );
        }
        for case in group {
            if let Some(summary) = &case.summary {
                marks(svg, summary, ink(case.placement), y + ROW / 2, &x);
            }
            y += ROW;
        }
        y += 6;
    }
}

fn marks(svg: &mut Svg, summary: &JobSummary, ink: Ink, y: i32, x: &impl Fn(f64) -> i32) {
    let (median, p99, p999) = (x(summary.median), x(summary.p99), x(summary.p999));
    svg.line((median, y), (p999, y), ink, 2.0);
    svg.line((p99, y - 3), (p99, y + 3), ink, 1.0);
    svg.line((p999, y - 3), (p999, y + 3), ink, 1.0);
    svg.line((median, y - 5), (median, y + 5), ink, 4.0);
    svg.dot(x(summary.worst), y, 3, ink, 0.4);
    let worst = crate::table::number(summary.worst * 1e6);
    svg.text_below(
        WIDTH - MARGIN,
        y - 7,
        LABEL_SIZE,
        Anchor::Right,
        Ink::Faint,
        &format!("{worst} µs"),
    )
}
