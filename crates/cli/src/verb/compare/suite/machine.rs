//! Makes sure that a suite continues where it began: on the same machine, with the same settings.

use serde_json::Value;

/// Properties that must be the same in all runs of one comparison.
const SAME_MACHINE: [(&str, &str); 4] = [
    ("cpu", "CPU"),
    ("kernel", "kernel"),
    ("superhue", "superhue"),
    ("commit", "commit of superhue"),
];

/// Further ones, which results of older versions may lack. A counter of khugepaged is not among them: it differs after each run.
const SAME_SETTINGS: [(&str, &str); 11] = [
    ("/cpus", "CPUs"),
    ("/memory_bytes", "memory"),
    ("/thp_enabled", "mode of huge pages"),
    ("/thp_defrag", "mode of defragmentation"),
    ("/khugepaged/alloc_sleep_ms", "khugepaged's alloc_sleep_ms"),
    ("/khugepaged/scan_sleep_ms", "khugepaged's scan_sleep_ms"),
    ("/khugepaged/pages_to_scan", "khugepaged's pages_to_scan"),
    ("/khugepaged/defrag", "khugepaged's defrag"),
    ("/khugepaged/max_ptes_none", "khugepaged's max_ptes_none"),
    (
        "/khugepaged/max_ptes_shared",
        "khugepaged's max_ptes_shared",
    ),
    ("/khugepaged/max_ptes_swap", "khugepaged's max_ptes_swap"),
];

/// Largest relative difference of the memory of one machine: what the kernel itself takes at boot varies.
const SAME_MEMORY: f64 = 0.01;

/// Returns the first property of the machine that differs: its name, its old value, its new one.
pub(super) fn other_machine(before: &Value, now: &Value) -> Option<(&'static str, String, String)> {
    let text = |machine: &Value, name: &str| match machine.get(name).and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => "unknown".to_owned(),
    };
    SAME_MACHINE.into_iter().find_map(|(name, what)| {
        let (was, is) = (text(before, name), text(now, name));
        (was != is).then_some((what, was, is))
    })
}

/// Returns the first setting or size of the machine that differs from a known earlier one: its name, its old value, its new one.
pub(super) fn other_settings(
    before: &Value,
    now: &Value,
) -> Option<(&'static str, String, String)> {
    let text = |value: &Value| match value {
        Value::Null => "unknown".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    SAME_SETTINGS.into_iter().find_map(|(path, what)| {
        let was = before.pointer(path).filter(|was| !was.is_null())?;
        let is = now.pointer(path).unwrap_or(&Value::Null);
        let is_same = match (path, was.as_f64(), is.as_f64()) {
            ("/memory_bytes", Some(was), Some(is)) => (was - is).abs() <= SAME_MEMORY * was,
            _ => was == is,
        };
        (!is_same).then(|| (what, text(was), text(is)))
    })
}
