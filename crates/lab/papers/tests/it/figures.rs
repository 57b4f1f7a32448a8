//! Figures as such: the same for the same seed, and invariants for every draw.

use superhue_papers::cachesim::{Machine, machines};
use superhue_papers::document::{Document, Figure, SCHEMA};
use superhue_papers::figure::{self, Settings};
use superhue_papers::memory::Memory;
use superhue_papers::page::{self, ExtraResults};
use superhue_papers::{picture, table};

fn quick(draws: usize, machine: Option<Machine>) -> Settings {
    Settings {
        quick: true,
        draws: Some(draws),
        machine,
        plugin: "/nonexistent/trace.so".into(),
    }
}

fn made(name: &str, seed: u64) -> Figure {
    figure::named(name)
        .unwrap()
        .make(&quick(3, None), &Memory::drawn(seed))
        .unwrap()
}

fn document(figures: Vec<Figure>) -> Document {
    Document {
        schema: SCHEMA.to_owned(),
        seed: 1,
        quick: true,
        frames: Vec::new(),
        figures,
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for name in ["p0-celeron", "p2-bandwidth", "p1-rule"] {
        let [one, same, other] = [1, 1, 2].map(|seed| {
            let document = document(vec![made(name, seed)]);
            let figure = &document.figures[0];
            [
                document.to_json().unwrap(),
                picture::draw(figure),
                page::markdown(&document, &ExtraResults::default()),
            ]
        });
        assert_eq!(one, same, "{name}");
        // Colors in turn leave nothing to chance where only a sweep is replayed.
        assert_eq!(one[0] == other[0], name == "p1-rule", "{name}");
    }
}

/// P0's capacity follows from the size of the cache, and only coloring reaches it.
#[test]
fn coloring_keeps_a_transpose_in_the_cache() {
    let figure = made("p0-celeron", 7);
    let misses = |dim: &str, arm: &str| figure.result(dim, arm).unwrap().misses;
    assert!(misses("87", "colored").most < misses("87", "random").least);
    assert!(misses("120", "colored").median > 100.0);
    // Table 2 as printed.
    let paper = |dim: &str, arm: &str| figure.result(dim, arm).unwrap().paper;
    assert_eq!(paper("47", "kernel"), Some(519.32));
    assert_eq!(paper("95", "colored"), Some(300.83));
    assert_eq!(paper("120", "colored"), None);
}

#[test]
fn superpages_save_walks() {
    let figure = made("p3-stride", 1);
    let walks = |stride: &str, arm: &str| figure.result(stride, arm).unwrap().walks.median;
    // A page of 512 doubles needs one walk; a stride of two pages needs a walk each time.
    assert!((walks("8", "kernel") - 1000.0 / 512.0).abs() < 0.1);
    assert!(walks("8000", "kernel") > 990.0);
    assert!(walks("8000", "superpages") < 300.0);
}

#[test]
fn another_machine_is_no_papers_machine() {
    let machine = Machine::parse("zen.toml", machines::ZEN).unwrap();
    let settings = quick(1, Some(machine));
    let memory = Memory::drawn(1);
    let figure = figure::named("p0-celeron")
        .unwrap()
        .make(&settings, &memory)
        .unwrap();
    assert_eq!(figure.machine, "Zen");
    assert!(
        figure
            .points
            .iter()
            .flat_map(|point| &point.arms)
            .all(|arm| arm.paper.is_none())
    );
    let celeron = Machine::parse("celeron-900.toml", machines::CELERON_900).unwrap();
    let settings = quick(1, Some(celeron));
    for name in ["p1-pairs", "p1-rule"] {
        let refused = figure::named(name)
            .unwrap()
            .make(&settings, &memory)
            .unwrap_err();
        assert!(refused.to_string().contains("Celeron 900"), "{refused}");
    }
}

#[test]
fn everything_is_told() {
    let document = document(vec![made("p1-rule", 1)]);
    let text = table::text(&document) + &page::markdown(&document, &ExtraResults::default());
    for words in [
        "no-rule",
        "Loses:",
        "## Not modelled",
        "there are no files of frames",
    ] {
        assert!(text.contains(words), "{words}");
    }
    let again: Document = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    assert_eq!(again, document);
}

#[test]
fn damaged_frames_are_refused() {
    let mut memory = Memory::drawn(1);
    let refused = memory
        .add(
            "unpatched-aged-base",
            b"superhue-frames/1 x\ndraw small 1 0\n",
        )
        .unwrap_err();
    assert!(refused.to_string().contains("died"), "{refused}");
}

#[test]
fn frames_of_other_kernels_are_refused() {
    // A file without a draw; the sum is that of nothing.
    let file =
        |how: &str| format!("superhue-frames/1 {how}\n\nend cbf29ce484222325\n").into_bytes();
    let mut memory = Memory::drawn(1);
    let mut add = |name: &str, how: &str| match memory.add(name, &file(how)) {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    let base = "off,aged,base linux=6.12 kernel=unpatched made=a";
    assert_eq!(add("unpatched-aged-base", base), "");
    let spread = "spread,aged,base linux=6.12 kernel=spread made=b";
    assert_eq!(add("spread-aged-base", spread), "");
    assert_eq!(
        add(
            "unpatched-aged-thp",
            "off,aged,thp linux=6.12 kernel=unpatched made=c"
        ),
        "unpatched-aged-thp.frames is of another kernel than unpatched-aged-base.frames"
    );
    assert_eq!(
        add(
            "sets-aged-base",
            "sets,aged,base linux=6.12 kernel=sets made=c"
        ),
        "sets-aged-base.frames is of another kernel than spread-aged-base.frames"
    );
    let newer = add(
        "sets-aged-base",
        "sets,aged,base linux=7.3 kernel=sets made=b",
    );
    assert!(newer.contains("another kernel"), "{newer}");
    assert_eq!(
        add("unpatched-aged-thp", base),
        "unpatched-aged-thp.frames is of unpatched-aged-base"
    );
    let nameless = add("unpatched-aged-thp", "off,aged,thp linux=6.12");
    assert!(nameless.contains("does not name"), "{nameless}");
}

/// Without an emulator the figure has the loops, and names the programs that it lacks.
#[test]
fn stand_ins_that_cannot_be_run_are_left_out_visibly() {
    let made = || {
        let kind = figure::named("p3-programs").unwrap();
        kind.make(&quick(1, None), &Memory::drawn(1)).unwrap()
    };
    let figure = made();
    let labels: Vec<&str> = figure
        .points
        .iter()
        .map(|point| point.label.as_str())
        .collect();
    assert_eq!(labels, ["swim", "tomcatv", "wupwise", "apsi"]);
    let said = figure.verdict.join(" ");
    assert!(said.contains("LEFT OUT: all programs of Debian"), "{said}");
    let of = |label: &str, arm: &str| figure.result(label, arm).unwrap().clone();
    for label in labels {
        let (base, large) = (of(label, "random"), of(label, "superpages"));
        assert_eq!(base.references, 10_000_000, "{label}");
        assert!((base.value.median - 1.0).abs() < 1e-5, "{label}");
        assert!(large.walks.median < base.walks.median, "{label}");
    }
    assert_eq!(made(), figure);
}
