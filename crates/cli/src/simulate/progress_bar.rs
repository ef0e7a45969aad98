//! A progress bar on standard error, if that is a terminal.

use std::io::{IsTerminal, Write};

const WIDTH: u64 = 40;

/// The progress of several runs.
pub struct ProgressBar {
    is_shown: bool,
    done_us: u64,
    all_us: u64,
    last: Option<u64>,
}

impl ProgressBar {
    /// A bar for `all_us` of virtual time.
    pub fn new(all_us: u64) -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), done_us: 0, all_us: all_us.max(1), last: None }
    }

    /// Shows that the current run has reached `now_us`.
    pub fn reach(&mut self, now_us: u64) {
        let percent = (self.done_us + now_us).min(self.all_us) * 100 / self.all_us;
        if self.is_shown && self.last != Some(percent) {
            self.last = Some(percent);
            let filled = percent * WIDTH / 100;
            let bar: String = (0..WIDTH).map(|cell| if cell < filled { '█' } else { '░' }).collect();
            let mut stderr = std::io::stderr();
            // The terminal may have been closed.
            let _ = write!(stderr, "\r{bar} {percent:3} %").and_then(|()| stderr.flush());
        }
    }

    /// Shows that the current run, of `length_us`, has ended.
    pub fn advance(&mut self, length_us: u64) {
        self.done_us += length_us;
        self.reach(0);
    }

    /// Removes the bar.
    pub fn end(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r{:width$}\r", "", width = WIDTH as usize + 6);
        }
    }
}
