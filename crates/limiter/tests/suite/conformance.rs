//! Conformance checks for every store. They are run by the suites of the engine and of the shared store.

#![allow(dead_code, reason = "each suite uses a part of it")]

// Paths from this folder, because another crate includes this file by its path.
#[path = "conformance/clients.rs"]
pub mod clients;
#[path = "conformance/cooldowns.rs"]
pub mod cooldowns;
#[path = "conformance/key_states.rs"]
pub mod key_states;
#[path = "conformance/parts.rs"]
pub mod parts;
#[path = "conformance/setting.rs"]
pub mod setting;
#[path = "conformance/walks.rs"]
pub mod walks;
