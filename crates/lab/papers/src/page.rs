//! The page that can be read without running anything: `docs/lab/README.md`.

use std::fmt::Write as _;

use crate::document::Document;
use crate::native::Native;
use crate::table::{cells, placed};
use crate::witness::Witness;

/// What was kept besides the figures, and has sections of its own on the page.
#[derive(Debug, Default)]
pub struct Beside {
    /// Full-system runs of some points.
    pub witness: Option<Witness>,
    /// P4's sweeps, measured.
    pub native: Option<Native>,
}

/// The page, in Markdown; pictures lie beside it as `NAME.svg`.
#[must_use]
pub fn markdown(document: &Document, beside: &Beside) -> String {
    let mut text = String::from(
        "# The lab: the papers' figures beside ours\n\n\
         The papers' machines are gone. So real kernels place the pages of programs, and models of those machines' caches and\n\
         TLBs count what that costs. `make lab` (`LAB=--quick` for less) makes this page again, byte for byte for the same frames and seed;\n\
         `superhue lab FIGURE` prints one figure. Everything in numbers is in [lab.json](lab.json).\n\n\
         **How to read it.** Misses come first: they are counted, and depend on sizes, ways and lines alone. Modelled time\n\
         is a weighted sum of the counts by the costs that the machine's file declares (`crates/lab/cachesim/machines`, each\n\
         parameter with its source); no cost was fitted to the papers. What coloring changes is luck, so each point has many\n\
         draws: the line is their median, the bar goes from the 5th to the 95th percentile, the small dot is the worst. A\n\
         diamond is the paper's number.\n\n\
         | arm | pages |\n|---|---|\n\
         | `fresh` | dealt by an unpatched Linux 6.12 just after boot: it places pages in order, so it colors by accident |\n\
         | `kernel` | dealt by the same kernel when its free lists are mixed: what the papers call normal |\n\
         | `random` | drawn: any frame, as of a list that is fully mixed |\n\
         | `colored` | dealt by the patched kernel, with mixed lists: all colors in turn |\n\
         | `superpages` | dealt by the unpatched kernel with superpages of 2 MiB wherever they fit, the rest mixed |\n\
         | `both` | dealt by the patched kernel: superpages, the rest by color |\n\
         | `halves` | dealt by the patched kernel to two tasks with half of the colors each; drawn in p1-rule |\n\
         | `no-rule` | drawn: half of the colors, by a bit that the private caches go by, too |\n\n",
    );
    text.push_str(if document.quick {
        "This page was made with `--quick`: 24 draws of each point of up to 1 MiB, 5 of larger ones, 60 loops in P1, and fewer points\n\
         than the whole lab has.\n\n"
    } else {
        "There are 24 draws of each point, 8 of more than 10 MiB, 2 of more than 48 MiB, and 300 loops in P1.\n\n"
    });
    let _ = writeln!(text, "{}\n", placed(document));
    for frames in &document.frames {
        let _ = writeln!(
            text,
            "- `{}`: {}; sum {}",
            frames.name, frames.how, frames.sum
        );
    }
    text.push_str("\n## In short\n\n| figure | paper | verdict |\n|---|---|---|\n");
    for figure in &document.figures {
        let _ = writeln!(
            text,
            "| [{0}](#{0}) | {1} | {2} |",
            figure.name,
            figure.paper,
            figure.verdict.join(" ")
        );
    }
    for figure in &document.figures {
        let _ = writeln!(
            text,
            "\n## {}\n\n**{}** Beside {}, on {}. Done: {}.\n",
            figure.name,
            figure.title.clone() + ".",
            figure.paper,
            figure.machine,
            figure.workload
        );
        for said in &figure.says {
            let _ = writeln!(text, "> The paper: {said}\n");
        }
        let _ = writeln!(text, "![{}]({}.svg)\n", figure.title, figure.name);
        for said in &figure.verdict {
            let _ = writeln!(text, "- {said}");
        }
        for said in &figure.losing {
            let _ = writeln!(text, "- Losing cases: {said}");
        }
        let _ = writeln!(text, "\nNot modelled: {}\n", figure.not_modelled.join(" "));
        text.push_str("<details><summary>All numbers</summary>\n\n");
        for (index, row) in cells(figure).iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if index == 0 {
                let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
            }
        }
        text.push_str("\n</details>\n");
    }
    if let Some(native) = &beside.native {
        text.push_str("\n## P4, natively\n\n");
        text.push_str(&native.markdown());
    }
    text.push_str(
        "\n## Your own program\n\n\
         `superhue lab --machine here -- COMMAND` runs a program under an emulator and replays its loads and stores meanwhile, on a model of\n\
         the machine that it runs on: with any frames, by color, in superpages, and both. Give `--machine pentium4-1600` for a machine of\n\
         this page, or a file of your own. It says in a sentence what coloring and superpages would save. It needs Debian 12's qemu-user; in the sources, `make lab-trace` once.\n",
    );
    text.push_str("\n## The witness\n\n");
    match &beside.witness {
        Some(witness) => text.push_str(&witness.markdown()),
        None => text.push_str(
            "There is none in this folder: `make lab-witness` runs some points full-system and compares.\n",
        ),
    }
    text.push_str(
        "\n## What is not here\n\n\
         - P0 figure 11 and 13 are of the same runs as 10 and 12; their ratios are rows of the tables.\n\
         - P3 figures 12 and 13 are of SPEC CPU2000, which is not free: p3-programs has stand-ins. Figure 14 is of another paper.\n\
         - P2's compile of a kernel and lmbench: not loops that can be replayed.\n\
         - P1's pairs under the witness: QEMU 7.2 loses guests with two CPUs at the same time, so they are replayed alone.\n\
         - Superpages of 4 MiB, and pages of 8 KiB of real kernels: there are none on x86-64.\n",
    );
    text
}
