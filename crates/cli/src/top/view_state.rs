//! What the screen shows, and what keys change of it.

use super::feed::{FeedMessage, LiveSnapshot};
use std::time::Duration;
use tokio::time::Instant;

/// A part of the screen that can be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    Rules,
    Keys,
    Nodes,
    Events,
}

impl Panel {
    pub const ALL: [Self; 4] = [Self::Rules, Self::Keys, Self::Nodes, Self::Events];

    fn moved(self, by: isize) -> Self {
        let index = Self::ALL.iter().position(|panel| *panel == self).unwrap_or(0);
        Self::ALL[(index as isize + by).rem_euclid(Self::ALL.len() as isize) as usize]
    }
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewAction {
    Quit,
    Pause,
    NextPanel,
    PreviousPanel,
    Scroll(i32),
}

/// Whether the figures are current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedState {
    /// There was no reply yet.
    Connecting,
    Live,
    /// The last question failed.
    Lost {
        error: String,
        retry: Duration,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ViewState {
    pub address: String,
    pub snapshot: Option<LiveSnapshot>,
    pub feed: FeedState,
    /// When the figures came.
    pub received: Option<Instant>,
    pub is_paused: bool,
    pub panel: Panel,
    /// The first line of each panel that is shown, in the order of [`Panel::ALL`].
    pub first_lines: [usize; Panel::ALL.len()],
}

impl ViewState {
    pub fn new(address: String) -> Self {
        Self {
            address,
            snapshot: None,
            feed: FeedState::Connecting,
            received: None,
            is_paused: false,
            panel: Panel::Rules,
            first_lines: [0; Panel::ALL.len()],
        }
    }

    /// Takes in what came. While it is paused, figures stay as they are.
    pub fn apply(&mut self, message: FeedMessage) {
        match message {
            FeedMessage::Snapshot(snapshot) => {
                self.feed = FeedState::Live;
                if !self.is_paused {
                    self.snapshot = Some(*snapshot);
                    self.received = Some(Instant::now());
                }
            }
            FeedMessage::Failed(error, retry) => self.feed = FeedState::Lost { error, retry },
            FeedMessage::Stop => {}
        }
    }

    /// Does what a key wants.
    pub fn act(&mut self, action: ViewAction) {
        match action {
            ViewAction::Quit => {}
            ViewAction::Pause => self.is_paused = !self.is_paused,
            ViewAction::NextPanel => self.panel = self.panel.moved(1),
            ViewAction::PreviousPanel => self.panel = self.panel.moved(-1),
            ViewAction::Scroll(lines) => {
                let first = &mut self.first_lines[self.panel as usize];
                *first = first.saturating_add_signed(lines as isize);
            }
        }
    }

    /// The first line of `panel`, which has so many lines and room for so many: the last page is full.
    pub fn first_line(&mut self, panel: Panel, lines: usize, room: usize) -> usize {
        let first = &mut self.first_lines[panel as usize];
        *first = (*first).min(lines.saturating_sub(room));
        *first
    }
}
