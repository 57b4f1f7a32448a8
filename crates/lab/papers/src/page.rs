//! Page with all results, for readers who run nothing: `docs/lab/README.md`.

use std::fmt::Write as _;

use crate::document::Document;
use crate::native::Native;
use crate::table::placed;
use crate::witness::Witness;

/// Kept results besides the figures, with sections of their own on the page.
#[derive(Debug, Default)]
pub struct ExtraResults {
    /// Full-system runs of some points.
    pub witness: Option<Witness>,
    /// P4's sweeps, measured on a real machine.
    pub native: Option<Native>,
}

/// Writes the page, in Markdown; pictures lie beside it as `NAME.svg`.
#[must_use]
pub fn markdown(document: &Document, beside: &ExtraResults) -> String {
    let mut text = String::from(
        "# The lab: the papers' figures beside ours\n\n\
         Papers P0 to P4 ([names](numbers.md)) measured machines that are gone. Real kernels place the pages, and models of those machines' caches\n\
         and TLBs count misses. `make lab` (`LAB=--quick` for less) makes this page again, byte for byte for the same frames and seed.\n\
         [lab.json](lab.json) has all numbers; `superhue lab FIGURE` replays one figure.\n\n\
         **Misses** of caches and TLBs are counted; no cost enters them. **Modelled time** is a weighted sum of the counts by the costs\n\
         that the machine's file declares (`crates/lab/cachesim/machines`, with origins). No cost was fitted to the\n\
         papers. The effect of coloring is a matter of luck, so each point has many draws: in pictures the line is their median, the bar\n\
         goes from the 5th to the 95th percentile, the small dot is the worst, a diamond is the paper's number. Axes show 0.\n\
         Where most programs' arms would be one dot, the picture shows their change against the first arm, and that arm's value\n\
         below each program. MISSED marks a paper's figure that was not reproduced.\n\n\
         | arm | source of the page frames |\n|---|---|\n\
         | `fresh` | an unpatched Linux 6.12 just after boot: it places pages in order, so it colors by accident |\n\
         | `kernel` | the same kernel with mixed free lists: the papers' normal case |\n\
         | `random` | drawn: any frame, as of a list that is fully mixed |\n\
         | `colored` | the patched kernel, with mixed lists: all colors in turn |\n\
         | `superpages` | the unpatched kernel with huge pages of 2 MiB wherever they fit, the rest mixed |\n\
         | `both` | the patched kernel: huge pages, the rest by color |\n\
         | `halves` | the patched kernel, for two tasks with half of the colors each; drawn in p1-rule |\n\
         | `no-rule` | drawn: half of the colors, by a bit that the private caches use, too |\n\n",
    );
    text.push_str(if document.quick {
        "This page was made with `--quick`: 24 draws of each point of up to 1 MiB, 5 of larger ones, 60 loops in P1, and fewer points\n\
         than the whole lab has.\n\n"
    } else {
        "There are 24 draws of each point, 8 of more than 10 MiB, 2 of more than 48 MiB, 5 of the programs of P3, and 300 loops in P1.\n\n"
    });
    let _ = writeln!(text, "{}\n", placed(document));
    text.push_str("## Figures\n\n| figure | paper | machine |\n|---|---|---|\n");
    for figure in &document.figures {
        let _ = writeln!(
            text,
            "| [{0}](#{0}) | {1} | {2} |",
            figure.name, figure.paper, figure.machine
        );
    }
    for figure in &document.figures {
        let _ = writeln!(
            text,
            "\n## {}\n\n**{}.** {}, on {}. Work: {}.\n",
            figure.name, figure.title, figure.paper, figure.machine, figure.workload
        );
        for claim in &figure.says {
            let _ = writeln!(text, "> The paper: {claim}\n");
        }
        let _ = writeln!(text, "![{}]({}.svg)\n", figure.title, figure.name);
        for finding in &figure.verdict {
            let _ = writeln!(text, "- {finding}");
        }
        for case in &figure.losing {
            let _ = writeln!(text, "- Losing cases: {case}");
        }
    }
    text.push_str("\n## Not modelled\n\n");
    let mut limits: Vec<(&String, Vec<&str>)> = Vec::new();
    for figure in &document.figures {
        for limit in &figure.not_modelled {
            match limits.iter_mut().find(|(known, _)| *known == limit) {
                Some((_, names)) => names.push(&figure.name),
                None => limits.push((limit, vec![&figure.name])),
            }
        }
    }
    for (limit, names) in limits {
        let names = if names.len() == document.figures.len() {
            "all".to_owned()
        } else {
            names.join(", ")
        };
        let _ = writeln!(text, "- {limit} ({names})");
    }
    if let Some(native) = &beside.native {
        text.push_str("\n## P4, natively\n\n");
        text.push_str(&native.markdown());
    }
    text.push_str(
        "\n## Your own program\n\n\
         `superhue lab --machine here -- COMMAND` runs a program under an emulator and replays its loads and stores meanwhile, on a model of\n\
         the machine that it runs on: with any frames, by color, in huge pages, and both. Give `--machine pentium4-1600` for a machine of\n\
         this page, or a file of your own. It needs Debian 12's qemu-user; in the sources, `make lab-trace` once.\n",
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
         - Huge pages of 4 MiB, and pages of 8 KiB of real kernels: there are none on x86-64.\n",
    );
    text
}
