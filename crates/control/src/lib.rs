//! Where rules come from: today a file, watched. The same watch serves other files that a node takes up again.

mod file;
mod last_good;
mod trial;
mod watch;

pub use file::{LoadError, RuleFile, RuleSource, Status};
pub use trial::{FailedTests, TestFailures};
pub use watch::{Cause, Contents, FileWatch};
