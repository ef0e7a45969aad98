//! The chart of decisions over time: a column for each moment, its parts stacked. Each part has a colour and a pattern of
//! its own.

use super::screen::Palette;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::Widget;
use tollgate_control::live::LivePoint;

/// The width of the scale beside the chart.
const SCALE_WIDTH: u16 = 7;

/// A part of a column, from the bottom up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChartPart {
    Allowed,
    Limited,
    Denied,
    Degraded,
}

impl ChartPart {
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Limited, Self::Denied, Self::Degraded];

    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Limited => "limited",
            Self::Denied => "denied",
            Self::Degraded => "degraded",
        }
    }

    pub fn pattern(self) -> &'static str {
        match self {
            Self::Allowed => "█",
            Self::Limited => "▒",
            Self::Denied => "╳",
            Self::Degraded => "░",
        }
    }

    fn style(self, palette: &Palette) -> Style {
        match self {
            Self::Allowed => palette.allowed(),
            Self::Limited => palette.limited(),
            Self::Denied => palette.denied(),
            Self::Degraded => palette.degraded(),
        }
    }

    /// Requests that only a rule in shadow mode would have refused passed.
    pub fn of(self, point: &LivePoint) -> u64 {
        match self {
            Self::Allowed => point.allowed.unwrap_or(0).saturating_add(point.shadow_limited.unwrap_or(0)),
            Self::Limited => point.limited.unwrap_or(0),
            Self::Denied => point.denied.unwrap_or(0),
            Self::Degraded => point.degraded.unwrap_or(0),
        }
    }

    /// The same of several points. A node may have reported any number.
    pub fn sum(self, points: &[LivePoint]) -> u64 {
        points.iter().map(|point| self.of(point)).fold(0, u64::saturating_add)
    }
}

/// See the module.
pub struct DecisionChart<'a> {
    pub points: &'a [LivePoint],
    pub step_seconds: u64,
    pub palette: &'a Palette,
}

/// Decisions a second in one column; none if they are not known.
type ChartColumn = Option<[f64; ChartPart::ALL.len()]>;

impl DecisionChart<'_> {
    /// The last points, as many for each column as all of them need.
    fn columns(&self, width: usize) -> Vec<ChartColumn> {
        let per_column = self.points.len().div_ceil(width.max(1)).max(1);
        let column = |points: &[LivePoint]| {
            let known = points.iter().filter(|point| point.allowed.is_some()).count();
            let seconds = (known as u64).saturating_mul(self.step_seconds) as f64;
            (known > 0).then(|| ChartPart::ALL.map(|part| part.sum(points) as f64 / seconds))
        };
        // From the end, so that the last column is whole.
        let mut columns: Vec<ChartColumn> = self.points.rchunks(per_column).map(column).collect();
        columns.reverse();
        columns
    }
}

/// The cells of each part in a column that is `height` cells high: what is there is seen, however little it is.
fn cells(parts: [f64; ChartPart::ALL.len()], most: f64, height: u16) -> [u16; ChartPart::ALL.len()] {
    let mut cells = parts.map(|part| match part {
        part if part <= 0.0 || most <= 0.0 => 0,
        part => ((part / most * f64::from(height)).round() as u16).max(1),
    });
    // Rounding up small parts is at the expense of the largest.
    while cells.iter().sum::<u16>() > height {
        let largest = (0..cells.len()).max_by_key(|index| cells[*index]).unwrap_or(0);
        cells[largest] -= 1;
    }
    cells
}

impl Widget for DecisionChart<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.width <= SCALE_WIDTH + 10 || area.height < 3 {
            return;
        }
        let (left, width, height) = (area.x + SCALE_WIDTH, area.width - SCALE_WIDTH, area.height - 1);
        let columns = self.columns(usize::from(width));
        let totals = columns.iter().flatten().map(|parts| parts.iter().sum::<f64>());
        let most = nice_bound(totals.fold(0.0, f64::max));
        let dim = Style::new().add_modifier(Modifier::DIM);
        for (row, value) in [(0, most), (height / 2, most / 2.0)] {
            let text = format!("{:>6}", super::panels::number(value));
            buffer.set_string(area.x, area.y + row, text, dim);
        }
        buffer.set_string(area.x, area.y + height - 1, "   0/s", dim);
        let first = left + width.saturating_sub(columns.len() as u16);
        for (index, column) in columns.iter().enumerate() {
            let x = first + index as u16;
            let Some(parts) = column else {
                buffer.set_string(x, area.y + height - 1, "·", dim);
                continue;
            };
            let mut y = area.y + height;
            for (part, cells) in ChartPart::ALL.into_iter().zip(cells(*parts, most, height)) {
                for _ in 0..cells {
                    y -= 1;
                    buffer.set_string(x, y, part.pattern(), part.style(self.palette));
                }
            }
        }
        let range = self.points.len() as u64 * self.step_seconds;
        buffer.set_string(first, area.y + height, format!("-{} min", range / 60), dim);
        buffer.set_string(left + width - 3, area.y + height, "now", dim);
    }
}

/// 1, 2 or 5 times a power of ten, not below `value`.
fn nice_bound(value: f64) -> f64 {
    if value <= 0.0 {
        return 10.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let bound = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|bound| *bound >= value);
    bound.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parts_are_seen_and_columns_are_never_too_high() {
        for (parts, expected) in [
            ([100.0, 0.0, 0.0, 0.0], [10, 0, 0, 0]),
            ([99.0, 1.0, 0.0, 0.0], [9, 1, 0, 0]),
            ([50.0, 0.1, 0.1, 0.1], [5, 1, 1, 1]),
            ([0.0, 0.0, 0.0, 0.0], [0, 0, 0, 0]),
        ] {
            assert_eq!(cells(parts, 100.0, 10), expected, "{parts:?}");
        }
    }

    #[test]
    fn the_scale_is_readable() {
        for (value, expected) in [(0.0, 10.0), (3.0, 5.0), (10.0, 10.0), (11.0, 20.0), (5_001.0, 10_000.0)] {
            assert_eq!(nice_bound(value), expected);
        }
    }
}
