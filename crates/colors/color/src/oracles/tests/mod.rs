mod cliffs;
mod discovery;
mod sharing;
