//! One file per verb.

pub mod actuator;
pub mod advise;
pub mod attach;
mod attach_news;
pub mod bench;
pub mod check;
pub mod colors;
pub mod compare;
pub mod ctl;
pub mod daemon;
pub mod heat;
pub mod lab;
pub mod restore;
pub mod run;
pub mod status;
mod status_colors;
mod status_why;
pub mod top;
pub mod track;
pub mod trial;
pub mod worker;

mod document;
mod ending;
mod members;
mod outputs;
mod report_file;
mod resctrl_hint;
mod shared_folder;
mod tlb;
