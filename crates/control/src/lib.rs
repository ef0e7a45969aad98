//! Where rules come from: today a file, watched.

mod file;

pub use file::{LoadError, RuleFile, Status};
