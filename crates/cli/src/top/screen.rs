//! Draws the screen: a line of state, four figures, the chart, and four tables. A narrow or low terminal shows the figures
//! and the selected table.

use super::chart::{ChartPart, DecisionChart};
use super::panels::{self, LineTone};
use super::view_state::{FeedState, Panel, ViewState};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Row, Table};

/// Narrower or lower than this, only one table is shown.
const WIDE: u16 = 84;
const HIGH: u16 = 28;

/// The colours, which have the same meanings as in the page and in the dashboards.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    is_colored: bool,
}

impl Palette {
    /// With colours.
    pub fn colored() -> Self {
        Self { is_colored: true }
    }

    /// Without colours if `NO_COLOR` is set and not empty.
    pub fn of_environment() -> Self {
        Self { is_colored: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    fn color(&self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    pub fn allowed(&self) -> Style {
        self.color(Color::Blue)
    }

    pub fn limited(&self) -> Style {
        self.color(Color::Yellow)
    }

    pub fn denied(&self) -> Style {
        self.color(Color::Red)
    }

    pub fn degraded(&self) -> Style {
        self.color(Color::Magenta)
    }

    pub fn healthy(&self) -> Style {
        self.color(Color::Green)
    }

    fn tone(&self, tone: LineTone) -> Style {
        match tone {
            LineTone::Plain => Style::new(),
            LineTone::Limited => self.limited(),
            LineTone::Degraded => self.degraded(),
            LineTone::Healthy => self.healthy(),
            LineTone::Failed => self.denied(),
        }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, state: &mut ViewState, palette: &Palette) {
    let area = frame.area();
    let is_large = area.width >= WIDE && area.height >= HIGH;
    let figures_height = if area.width >= WIDE { 4 } else { 6 };
    let [head, figures, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(figures_height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, state, palette);
    draw_figures(frame, figures, state, palette);
    if is_large {
        let [chart, upper, lower] =
            Layout::vertical([Constraint::Fill(3), Constraint::Fill(2), Constraint::Fill(2)]).areas(body);
        draw_chart(frame, chart, state, palette);
        for (row, panels) in [(upper, [Panel::Rules, Panel::Keys]), (lower, [Panel::Nodes, Panel::Events])] {
            let halves: [Rect; 2] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(row);
            for (area, panel) in halves.into_iter().zip(panels) {
                draw_panel(frame, area, panel, state, palette);
            }
        }
    } else if body.height >= 14 {
        let [chart, panel] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(body);
        draw_chart(frame, chart, state, palette);
        draw_panel(frame, panel, state.panel, state, palette);
    } else {
        draw_panel(frame, body, state.panel, state, palette);
    }
    let keys = "q quit   tab ←→ table   ↑↓ scroll   p pause";
    frame.render_widget(Paragraph::new(keys).style(dim()), foot);
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// The address, the number of nodes, and whether the figures are current.
fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &ViewState, palette: &Palette) {
    let age = state.received.map(|received| received.elapsed().as_secs());
    let (mark, style) = match (&state.feed, state.is_paused) {
        (FeedState::Lost { error, retry }, _) => {
            let old = age.map_or(String::new(), |age| format!("figures are {age} s old; "));
            let error = error.lines().next().unwrap_or_default();
            let retry = retry.as_secs_f64();
            (format!("✗ not connected: {old}next attempt in {retry:.1} s: {error}"), palette.denied())
        }
        (_, true) => ("‖ paused".to_owned(), palette.limited()),
        (FeedState::Connecting, _) => ("… connecting".to_owned(), dim()),
        (FeedState::Live, _) => ("● live".to_owned(), palette.healthy()),
    };
    let nodes = state.snapshot.as_ref().map(|snapshot| snapshot.nodes.nodes.len());
    let nodes =
        nodes.map_or(String::new(), |nodes| format!("  {nodes} node{}", if nodes == 1 { "" } else { "s" }));
    let line = Line::from(vec![
        Span::styled("tollgate top", bold()),
        Span::raw(format!("  {}{nodes}  ", state.address)),
        Span::styled(mark, style.add_modifier(Modifier::BOLD)),
    ]);
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, state: &ViewState, palette: &Palette) {
    let now = state.snapshot.as_ref().map(|snapshot| snapshot.live.now.clone()).unwrap_or_default();
    let figures = panels::figures(&now);
    if area.width < WIDE {
        let lines = figures.map(|(name, value, tone)| {
            let value = Span::styled(value, palette.tone(tone).add_modifier(Modifier::BOLD));
            Line::from(vec![Span::styled(format!(" {name:<16}"), dim()), value])
        });
        let block = Block::bordered().border_type(BorderType::Rounded).border_style(dim());
        frame.render_widget(Paragraph::new(lines.to_vec()).block(block), area);
        return;
    }
    let areas: [Rect; 4] = Layout::horizontal([
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(3),
    ])
    .areas(area);
    for (area, (name, value, tone)) in areas.into_iter().zip(figures) {
        let block = Block::bordered().border_type(BorderType::Rounded).border_style(dim());
        let lines = vec![
            Line::styled(format!(" {value}"), palette.tone(tone).add_modifier(Modifier::BOLD)),
            Line::styled(format!(" {name}"), dim()),
        ];
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, state: &ViewState, palette: &Palette) {
    let mut title = vec![Span::styled(" Decisions ", bold())];
    for part in ChartPart::ALL {
        let style = match part {
            ChartPart::Allowed => palette.allowed(),
            ChartPart::Limited => palette.limited(),
            ChartPart::Denied => palette.denied(),
            ChartPart::Degraded => palette.degraded(),
        };
        title.push(Span::styled(part.pattern(), style));
        title.push(Span::raw(format!(" {}  ", part.name())));
    }
    let block =
        Block::bordered().border_type(BorderType::Rounded).border_style(dim()).title(Line::from(title));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    match &state.snapshot {
        Some(snapshot) if !snapshot.live.points.is_empty() => {
            let (points, step_seconds) = (&snapshot.live.points[..], snapshot.live.step_seconds);
            frame.render_widget(DecisionChart { points, step_seconds, palette }, inner);
        }
        _ => frame.render_widget(Paragraph::new(" no figures yet").style(dim()), inner),
    }
}

fn draw_panel(frame: &mut Frame<'_>, area: Rect, panel: Panel, state: &mut ViewState, palette: &Palette) {
    let is_selected = state.panel == panel;
    let mut title = format!(" {} ", panels::title(panel));
    let lines = state.snapshot.as_ref().map(|snapshot| panels::lines(panel, snapshot)).unwrap_or_default();
    let room = usize::from(area.height.saturating_sub(3));
    let first = state.first_line(panel, lines.len(), room);
    if lines.len() > room && room > 0 {
        title += &format!("{}–{} of {} ", first + 1, (first + room).min(lines.len()), lines.len());
    }
    let border = if is_selected { bold() } else { dim() };
    let title = if is_selected { format!("▸{title}") } else { title };
    let block = Block::bordered().border_type(BorderType::Rounded).border_style(border).title(title);
    if lines.is_empty() {
        let text = format!(" {}", panels::empty_text(panel));
        frame.render_widget(Paragraph::new(text).style(dim()).block(block), area);
        return;
    }
    let columns = panels::columns(panel);
    // What does not fit is left out from the right, so that a name is always there.
    let mut shown = columns.len();
    let needed =
        |shown: usize| columns[..shown].iter().map(|(_, width)| width.unwrap_or(16) + 1).sum::<u16>();
    while shown > 2 && needed(shown) > area.width.saturating_sub(2) {
        shown -= 1;
    }
    let widths = columns[..shown].iter().map(|(_, width)| match width {
        Some(width) => Constraint::Length(*width),
        None => Constraint::Fill(1),
    });
    let rows = lines
        .iter()
        .skip(first)
        .take(room)
        .map(|line| Row::new(line.cells[..shown].to_vec()).style(palette.tone(line.tone)));
    let header = Row::new(columns[..shown].iter().map(|(name, _)| *name)).style(dim());
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1).block(block), area);
}

#[cfg(test)]
mod tests;
