//! Pictures of invented processes are well-formed, of bounded size, and not empty.

use std::time::Duration;

use superhue_plot::svg::Svg;
use superhue_plot::{
    Arm, Cliff, Heat, Latency, Point, Recorder, SCHEMA, latency_svg, to_png, to_svg,
};

use crate::support::{heat, piece, server, worst};

/// Largest allowed size of an SVG.
const MIB: usize = 1 << 20;

/// Writes pictures to the folder that `SUPERHUE_PICTURES` names, for inspection.
fn keep(name: &str, heat: &Heat) {
    if let Some(folder) = std::env::var_os("SUPERHUE_PICTURES") {
        let path = std::path::Path::new(&folder).join(name);
        std::fs::write(path.with_extension("png"), to_png(&to_svg(heat)).unwrap()).unwrap();
        std::fs::write(path.with_extension("svg"), to_svg(heat)).unwrap();
    }
}

/// Returns width, height and number of colors of a PNG.
fn colors(png: &[u8]) -> (u32, u32, usize) {
    let image = resvg::tiny_skia::Pixmap::decode_png(png).unwrap();
    let mut seen: Vec<[u8; 4]> = image.data().as_chunks::<4>().0.to_vec();
    seen.sort_unstable();
    seen.dedup();
    (image.width(), image.height(), seen.len())
}

fn check(name: &str, heat: &Heat) {
    let back = Heat::from_json(&heat.to_json().unwrap()).unwrap();
    // This is not `assert_eq`, which would print megabytes.
    assert!(back == *heat, "{name}: changed by writing and reading");
    let svg = to_svg(heat);
    assert!(svg.len() < MIB, "{name}: {}", svg.len());
    assert!(
        svg == to_svg(&back),
        "{name}: the same document, another picture"
    );
    let options = resvg::usvg::Options::default();
    let tree = resvg::usvg::Tree::from_str(&svg, &options).unwrap();
    assert_eq!(tree.size().width(), 1200.0);
    keep(name, heat);
}

#[test]
fn a_server_with_many_mappings() {
    let heat = server(200);
    check("server-200", &heat);
    let svg = to_svg(&heat);
    for words in [
        "server (process 4711)",
        "[heap]",
        "[stack]",
        "2 MiB",
        "ptwalk",
        "200 samples",
    ] {
        assert!(svg.contains(words), "no `{words}`");
    }
    // Renders one picture only, since drawing is slow without optimisation.
    let png = to_png(&svg).unwrap();
    let (width, height, colors) = colors(&png);
    assert!(png.len() < MIB, "{}", png.len());
    assert_eq!(width, 2400);
    assert!((800..4000).contains(&height), "{height}");
    assert!(colors > 50, "{colors}");
    for nonsense in ["", "no picture", "<svg"] {
        assert!(to_png(nonsense).is_err(), "{nonsense}");
    }
    check("server-2", &server(2));
    check("server-1", &server(1));
}

#[test]
fn a_tall_picture_has_fewer_pixels_and_a_taller_one_an_error_with_a_remedy() {
    let png = |height: i32| to_png(&Svg::new(20, height, "tall").finish());
    let size = |height: i32| {
        let (width, height, _) = colors(&png(height).unwrap());
        (width, height)
    };
    assert_eq!(size(8000), (40, 16_000));
    assert_eq!(size(9000), (20, 9000));
    let refused = png(17_000).unwrap_err().to_string();
    assert!(
        refused.contains("20 x 17000") && refused.contains("SVG"),
        "{refused}"
    );
}

#[test]
fn noise_stays_within_bounds() {
    check("worst", &worst());
}

#[test]
fn one_page_and_one_huge_mapping() {
    let pieces = [piece(0x1000, 1, "[heap]", false)];
    let second = Duration::from_secs(1);
    check(
        "page",
        &heat("tiny", &pieces, 3, second, |sample, _, _| sample == 1),
    );
    let pieces = [piece(0x7f00_0000_0000, 512 * 100, "anonymous", false)];
    let one = heat("matrix", &pieces, 40, second, |sample, _, page| {
        page / 1280 == sample
    });
    check("huge-mapping", &one);
    // The only hot page of 200 MiB must be visible.
    let spot = heat("spot", &pieces, 4, second, |_, _, page| page == 30_000);
    check("spot", &spot);
    let idle = heat("spot", &pieces, 4, second, |_, _, _| false);
    check("idle", &idle);
    assert_ne!(to_svg(&spot), to_svg(&idle));
    let letters = |heat: &Heat| -> usize {
        let cells = heat.series.bands[0].cells.iter();
        cells
            .flat_map(|column| column.bytes())
            .filter(|&one| one > b'0')
            .count()
    };
    assert_eq!((letters(&spot), letters(&idle)), (4, 0));
}

#[test]
fn between_samples_the_last_one_is_shown_as_such() {
    let pieces = [
        piece(0x7f00_0000_0000, 512 * 8, "anonymous", false),
        piece(0x7fff_0000_0000, 9, "[stack]", false),
    ];
    let mut paused = heat(
        "paused",
        &pieces,
        2,
        Duration::from_secs(1),
        |_, index, _| index == 0,
    );
    let hatched = |heat: &Heat| to_svg(heat).matches("fill=\"url(#pause)\"").count();
    assert_eq!(hatched(&paused), 1, "in the legend alone");
    assert!(to_svg(&paused).contains("2 samples of 1.0 s, 2.0 s watched"));

    (paused.series.columns[0].to_seconds, paused.watched.seconds) = (0.05, 0.1);
    paused.series.columns[1].from_seconds = 4.0;
    paused.series.columns[1].to_seconds = 4.05;
    paused.watched.elapsed_seconds = 6.0;
    check("paused", &paused);
    assert_eq!(
        hatched(&paused),
        1 + 2 * 2,
        "two bands, after either sample"
    );
    let svg = to_svg(&paused);
    assert!(svg.contains("100 ms of 6.0 s watched"));
    // The columns cover all of the time, though each sample covers a hundredth of it.
    assert!(svg.contains("M218 142h782v"), "{svg}");
    // Older documents do not have the elapsed time.
    let old = paused.to_json().unwrap();
    let old = old.replace("\"elapsed_seconds\":6.0,", "");
    let old = Heat::from_json(&old).unwrap();
    assert_eq!((old.watched.elapsed_seconds, hatched(&old)), (0.0, 1 + 2));
}

/// Returns the height of the baseline of a text.
fn baseline(svg: &str, text: &str) -> i32 {
    let (before, _) = svg.split_once(&format!(">{text}</text>")).unwrap();
    let (_, mark) = before.rsplit_once("<text ").unwrap();
    let (_, y) = mark.split_once(" y=\"").unwrap();
    y.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn heads_of_columns_are_apart_from_the_legend() {
    let svg = to_svg(&server(2));
    let legend = baseline(&svg, "not resident");
    let heads = ["mean", "resident", "pages", "addresses ascend \u{2193}"];
    let heads = heads.map(|head| baseline(&svg, head));
    assert!(heads.iter().all(|head| *head == heads[0]), "{heads:?}");
    assert!(heads[0] - legend >= 24, "{legend} {heads:?}");
}

#[test]
fn names_are_whole_where_they_fit() {
    let long = "a-library-with-a-name-of-many-words.so.6.0.32";
    let longer = "longer-than-any-picture-has-room-for-".repeat(5);
    let pieces = [
        piece(0x7f00_0000_0000, 90, long, false),
        piece(0x7f10_0000_0000, 90, &longer, false),
    ];
    let second = Duration::from_secs(1);
    let whole = heat("names", &pieces[..1], 2, second, |_, _, page| page < 9);
    assert!(to_svg(&whole).contains(&format!(">{long}</text>")));
    let cut = heat("names", &pieces, 2, second, |_, _, page| page < 9);
    check("names", &cut);
    let svg = to_svg(&cut);
    assert!(svg.contains(&format!(">{long}</text>")));
    assert!(!svg.contains(&longer) && svg.contains("longer-than"));
    // Time keeps most of the width.
    assert!(svg.contains("M438 142h562v"), "{svg}");
}

#[test]
fn what_was_not_measured_is_told() {
    let mut heat = server(2);
    let svg = to_svg(&heat);
    assert!(!svg.contains("no sample saw") && !svg.contains("of each range"));
    heat.watched.unseen_share = Some(0.12);
    heat.tracker.name = "damon".to_owned();
    check("unseen", &heat);
    let svg = to_svg(&heat);
    for words in [
        "no sample saw",
        "about 12 %",
        "one page of each range is measured",
    ] {
        assert!(svg.contains(words), "{words}");
    }
}

#[test]
fn nothing_seen_is_said_so() {
    let mut none = server(1);
    none.series = Recorder::new().series(&[]);
    none.hot_set = superhue_plot::HotSet::default();
    none.watched.samples = 0;
    check("nothing", &none);
    let svg = to_svg(&none);
    assert!(svg.contains("no sample was taken") && svg.contains("no access was seen"));
}

#[test]
fn any_name_can_be_drawn() {
    let odd = "<&\"'>\u{0}\u{1b}[31m\u{202e}日本語 ".repeat(50);
    let pieces = [
        piece(0x1000, 9, &odd, false),
        piece(0x100_0000, 9, "", false),
    ];
    let mut heat = heat(&odd, &pieces, 3, Duration::from_millis(7), |_, _, page| {
        page < 3
    });
    heat.process.command = vec![odd; 20];
    check("odd", &heat);
}

#[test]
fn damaged_documents_are_refused() {
    let good = server(2);
    let broken = |change: &dyn Fn(&mut Heat)| {
        let mut heat = good.clone();
        change(&mut heat);
        Heat::from_json(&heat.to_json().unwrap())
            .unwrap_err()
            .to_string()
    };
    for (what, change) in [
        (
            "another number of columns",
            &(|heat: &mut Heat| drop(heat.series.bands[0].cells.pop())) as &dyn Fn(&mut Heat),
        ),
        ("other letters", &|heat| {
            heat.series.bands[1].cells[0].push('0')
        }),
        ("other letters", &|heat| {
            heat.series.bands[1].cells[0].replace_range(0..1, "!")
        }),
        ("segments do not ascend", &|heat| {
            heat.series.bands[1].segments[0] = [5, 5]
        }),
        ("columns do not ascend", &|heat| {
            heat.series.columns[1].from_seconds = 1e9
        }),
        ("no time", &|heat| heat.watched.elapsed_seconds = -1.0),
        ("no rows", &|heat| heat.series.bands[0].rows = 0),
        ("more rows", &|heat| heat.series.bands[0].rows = u32::MAX),
        ("hot set", &|heat| heat.hot_set.points[0].share = 7.0),
        ("mapping at", &|heat| heat.mappings[1].end = 0),
        ("pages at", &|heat| heat.mappings[1].runs[0].end = u64::MAX),
        ("superhue-heat/2", &|heat| {
            heat.schema = "superhue-heat/2".to_owned()
        }),
    ] {
        let said = broken(change);
        assert!(said.contains(what), "{what}: {said}");
    }
    for text in ["", "{}", "[]", "{\"schema\":\"superhue-heat/1\"}", "\u{0}"] {
        assert!(Heat::from_json(text).is_err());
    }
    assert!(
        good.to_json()
            .unwrap()
            .starts_with(&format!("{{\"schema\":\"{SCHEMA}\""))
    );
}

/// Returns the ideal measurement of a cache of 32 colors and 8 ways.
fn ideal() -> Latency {
    let arm = |name: &str, colors: Option<u64>, full: u64| {
        let pages = [full / 4, full / 2, full - 1, full, full + 1, 2 * full];
        let point = |&pages: &u64| Point {
            pages,
            ticks: [0.97, 1.0, 1.05]
                .map(|noise| noise * if pages > full { 120.0 } else { 37.0 })
                .to_vec(),
        };
        Arm {
            name: name.to_owned(),
            colors,
            points: pages.iter().map(point).collect(),
        }
    };
    Latency {
        cache: "L2".to_owned(),
        ways: 8,
        colors: 32,
        oracle: "measured".to_owned(),
        processor: Some("A <processor>".to_owned()),
        nanoseconds_per_tick: 0.385,
        arms: vec![
            arm("one color", Some(1), 8),
            arm("a quarter", Some(8), 64),
            arm("a half", Some(16), 128),
            arm("all", Some(32), 256),
            arm("kernel", None, 200),
        ],
        cliff: Cliff {
            expected_pages: 9,
            found_pages: Some(9),
        },
    }
}

#[test]
fn latency_is_drawn_from_its_json_alone() {
    let latency = ideal();
    let json = serde_json::to_string(&latency).unwrap();
    assert_eq!(Latency::from_json(&json), Ok(latency.clone()));
    let inside = format!("{{\"verification\": {json}}}");
    assert_eq!(Latency::from_json(&inside), Ok(latency.clone()));
    let svg = latency_svg(&latency);
    for words in [
        "32 colors of the L2",
        "9 pages of one color",
        "A &lt;processor&gt;",
        "a quarter",
    ] {
        assert!(svg.contains(words), "{words}");
    }
    let (width, height, seen) = colors(&to_png(&svg).unwrap());
    assert!(
        width == 2400 && height > 1000 && seen > 20,
        "{width} {height} {seen}"
    );
    if let Some(folder) = std::env::var_os("SUPERHUE_PICTURES") {
        let path = std::path::Path::new(&folder).join("latency.png");
        std::fs::write(path, to_png(&svg).unwrap()).unwrap();
    }
}

#[test]
fn nonsense_is_no_latency() {
    let refused = |text: &str| Latency::from_json(text).unwrap_err();
    assert!(refused("{").contains("EOF"));
    assert!(refused("{\"verification\": null}").contains("--verify"));
    assert!(refused("{}").contains("missing field"));
    let mut latency = ideal();
    latency.arms[0].points[0].ticks[0] = -1.0;
    let text = serde_json::to_string(&latency).unwrap();
    assert!(refused(&text).contains("cannot be"));
    let mut empty = ideal();
    empty.arms.clear();
    assert!(
        latency_svg(&empty).ends_with("</svg>\n"),
        "nothing is a picture too"
    );
}
