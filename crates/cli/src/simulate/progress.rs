//! A bar for people who wait; nothing for those who only read the result.

use std::io::{IsTerminal, Write};

const WIDTH: u64 = 40;

pub struct Progress {
    is_shown: bool,
    done_us: u64,
    all_us: u64,
    last: Option<u64>,
}

impl Progress {
    /// Of so much virtual time in all.
    pub fn new(all_us: u64) -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), done_us: 0, all_us: all_us.max(1), last: None }
    }

    /// The current run has come this far.
    pub fn reach(&mut self, now_us: u64) {
        let percent = (self.done_us + now_us).min(self.all_us) * 100 / self.all_us;
        if self.is_shown && self.last != Some(percent) {
            self.last = Some(percent);
            let filled = percent * WIDTH / 100;
            let bar: String = (0..WIDTH).map(|cell| if cell < filled { '█' } else { '░' }).collect();
            let mut stderr = std::io::stderr();
            // Who closes the terminal does not want to see it.
            let _ = write!(stderr, "\r{bar} {percent:3} %").and_then(|()| stderr.flush());
        }
    }

    /// The current run has ended.
    pub fn advance(&mut self, length_us: u64) {
        self.done_us += length_us;
        self.reach(0);
    }

    /// All have.
    pub fn end(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r{:width$}\r", "", width = WIDTH as usize + 6);
        }
    }
}
