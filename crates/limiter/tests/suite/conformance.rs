//! What every store must do, without tests of its own: the suites of the engine and of the shared store run it.

#![allow(dead_code, reason = "each suite uses a part of it")]

// Paths from this folder, because another crate includes this file by its path.
#[path = "conformance/clients.rs"]
pub mod clients;
#[path = "conformance/cooldowns.rs"]
pub mod cooldowns;
#[path = "conformance/setting.rs"]
pub mod setting;
#[path = "conformance/walks.rs"]
pub mod walks;
