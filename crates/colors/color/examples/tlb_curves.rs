//! Prints the times from which the TLB of this machine follows: `superhue/src/tlb/fixtures` keeps such curves.
//!
//! ```text
//! cargo run --release -p superhue-color --example tlb_curves
//! ```

#![allow(clippy::print_stdout, reason = "an example")]

use superhue_color::chase::{PageChase, Rounds};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut chase = PageChase::new()?;
    print!("{}", Rounds::measure(&mut chase));
    Ok(())
}
