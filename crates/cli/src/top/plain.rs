//! The figures as plain text, for scripts.

use super::chart::ChartPart;
use super::panels::{self, TableLine};
use super::view_state::{Panel, ViewState};
use std::fmt::{self, Display, Formatter};
use tollgate_core::rate::grouped;
use tollgate_limiter::line_log::is_hidden;

/// Lines of each table.
const MOST_LINES: usize = 20;

/// What is known, as text.
pub struct Plain<'a>(pub &'a ViewState);

impl Display for Plain<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(state) = self;
        let Some(snapshot) = &state.snapshot else { return writeln!(f, "no figures") };
        let (live, nodes) = (&snapshot.live, snapshot.nodes.nodes.len());
        let of_all = if snapshot.nodes.complete { "" } else { ", not all are known" };
        writeln!(
            f,
            "tollgate at {}: {nodes} node{}{of_all}\n",
            state.address,
            if nodes == 1 { "" } else { "s" }
        )?;
        for (name, value, _) in panels::figures(&live.now) {
            writeln!(f, "{name:<16} {value}")?;
        }
        let known = live.points.iter().filter(|point| point.allowed.is_some()).count() as u64;
        let sums = ChartPart::ALL.map(|part| part.sum(&live.points));
        let sums: Vec<String> = ChartPart::ALL
            .iter()
            .zip(sums)
            .map(|(part, sum)| format!("{} {}", grouped(sum), part.name()))
            .collect();
        writeln!(f, "last {:>4} s      {}", known * live.step_seconds, sums.join(", "))?;
        for panel in Panel::ALL {
            writeln!(f, "\n{}", panels::title(panel))?;
            let lines = panels::lines(panel, snapshot);
            if lines.is_empty() {
                writeln!(f, "  {}", panels::empty_text(panel))?;
            }
            write_table(f, panel, &lines[..lines.len().min(MOST_LINES)])?;
        }
        Ok(())
    }
}

fn write_table(f: &mut Formatter<'_>, panel: Panel, lines: &[TableLine]) -> fmt::Result {
    let columns = panels::columns(panel);
    let width = |index: usize| lines.iter().map(|line| line.cells[index].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in lines {
        let cells = line.cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        // The names come from other nodes.
        let text = cells.collect::<Vec<_>>().join("  ").replace(is_hidden, "?");
        writeln!(f, "  {}", text.trim_end())?;
    }
    Ok(())
}
