//! The tests of rule sources, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod broken;
mod changes;
mod irregular;
mod last_good;
mod opening;
mod reloads;
mod setting;
mod trials;
mod watching;
