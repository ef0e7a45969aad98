//! A screen as an SVG picture.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use std::fmt::Write;

/// The size of a cell, in pixels.
const CELL: (f32, f32) = (8.4, 18.0);
const MARGIN: f32 = 14.0;

/// The picture of `buffer`, on a dark background.
pub fn render(buffer: &Buffer) -> String {
    let (columns, rows) = (buffer.area.width, buffer.area.height);
    let (width, height) =
        (f32::from(columns) * CELL.0 + 2.0 * MARGIN, f32::from(rows) * CELL.1 + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"14\">\n<title>tollgate top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#14181d\"/>\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let style = style_of(buffer, column, row);
            let start = column;
            let mut text = String::new();
            while column < columns && style_of(buffer, column, row) == style {
                if let Some(cell) = buffer.cell((column, row)) {
                    text += cell.symbol();
                }
                column += 1;
            }
            if text.trim().is_empty() {
                continue;
            }
            let (x, y) = (MARGIN + f32::from(start) * CELL.0, MARGIN + f32::from(row) * CELL.1 + 14.0);
            let length = f32::from(column - start) * CELL.0;
            let (fill, is_bold) = style;
            let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
            // A string cannot fail to be written to.
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" fill=\"{fill}\"{weight}>{}</text>",
                escaped(&text)
            );
        }
    }
    svg + "</svg>\n"
}

/// The colour of a cell, and whether it is bold.
fn style_of(buffer: &Buffer, column: u16, row: u16) -> (&'static str, bool) {
    let Some(cell) = buffer.cell((column, row)) else { return ("#000", false) };
    let fill = match cell.fg {
        Color::Blue => "#5b9cf5",
        Color::Yellow => "#e5a83b",
        Color::Red => "#f0685e",
        Color::Magenta => "#b48cf2",
        Color::Green => "#57bd7f",
        _ if cell.modifier.contains(Modifier::DIM) => "#8a939e",
        _ => "#dfe4ea",
    };
    (fill, cell.modifier.contains(Modifier::BOLD))
}

/// Viewers collapse ordinary spaces, although the document asks them not to.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(' ', "\u{a0}")
}
