//! Figures and tables as texts, for the screen and for plain output.

use super::feed::LiveSnapshot;
use super::view_state::Panel;
use tollgate_control::live::{ListedNode, LiveEvent, LiveNow, LiveRule, NodeState};
use tollgate_core::rate::grouped;

/// How a line of a table is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTone {
    Plain,
    Limited,
    Degraded,
    Healthy,
    Failed,
}

/// A line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLine {
    pub cells: Vec<String>,
    pub tone: LineTone,
}

/// A column: its heading and its width; without a width it takes what is left.
pub type TableColumn = (&'static str, Option<u16>);

/// A figure: its name, its value, and how it is marked.
pub type Figure = (&'static str, String, LineTone);

/// Three significant digits, with a letter for thousands and more.
pub fn number(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999_500_000.0 => (value / 1e9, " G"),
        value if value >= 999_500.0 => (value / 1e6, " M"),
        value if value >= 999.5 => (value / 1e3, " k"),
        value => (value, ""),
    };
    let digits = match value {
        value if value >= 99.95 || (unit.is_empty() && value.fract() == 0.0) => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

/// A share as a percentage. What is above zero is never shown as 0.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 0.1 => "<0.1 %".to_owned(),
        percent if percent >= 99.95 => "100 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

/// Microseconds with a fitting unit.
pub fn duration_us(us: f64) -> String {
    let (value, unit) = match us {
        us if us >= 1e6 => (us / 1e6, "s"),
        us if us >= 1e3 => (us / 1e3, "ms"),
        us if us < 1.0 => (us * 1e3, "ns"),
        us => (us, "µs"),
    };
    format!("{} {unit}", number(value))
}

fn known<T>(value: Option<T>, shown: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), shown)
}

/// The four figures.
pub fn figures(now: &LiveNow) -> [Figure; 4] {
    let quantiles = |p50: Option<f64>, p99: Option<f64>| match (p50, p99) {
        (None, None) => "–".to_owned(),
        (p50, p99) => format!("≤ {} / ≤ {}", known(p50, duration_us), known(p99, duration_us)),
    };
    let tone = |share: Option<f64>, tone: LineTone| match share {
        Some(share) if share > 0.0 => tone,
        _ => LineTone::Plain,
    };
    [
        ("decisions/s", known(now.decisions_per_second, number), LineTone::Plain),
        ("limited", known(now.limited_share, percent), tone(now.limited_share, LineTone::Limited)),
        ("degraded", known(now.degraded_share, percent), tone(now.degraded_share, LineTone::Degraded)),
        ("added p50 / p99", quantiles(now.p50_us, now.p99_us), LineTone::Plain),
    ]
}

/// The heading of a panel.
pub fn title(panel: Panel) -> &'static str {
    match panel {
        Panel::Rules => "Rules by share limited, 5 min",
        Panel::Keys => "Top limited keys, 1 min",
        Panel::Nodes => "Nodes",
        Panel::Events => "Events",
    }
}

/// The columns of a panel.
pub fn columns(panel: Panel) -> &'static [TableColumn] {
    match panel {
        Panel::Rules => {
            &[("rule", None), ("limited", Some(8)), ("requests", Some(9)), ("refusals", Some(12))]
        }
        Panel::Keys => &[("key", None), ("kind", Some(9)), ("refused", Some(11))],
        Panel::Nodes => &[
            ("node (* asked)", None),
            ("state", Some(11)),
            ("rev", Some(5)),
            ("dec/s", Some(7)),
            ("p99", Some(8)),
        ],
        Panel::Events => &[("time", Some(8)), ("event", None)],
    }
}

/// The lines of a panel.
pub fn lines(panel: Panel, snapshot: &LiveSnapshot) -> Vec<TableLine> {
    match panel {
        Panel::Rules => snapshot.live.rules.iter().map(rule_line).collect(),
        Panel::Keys => {
            let line = |key: &tollgate_control::live::FrequentKey| TableLine {
                cells: vec![
                    key_name(&key.name, &key.fingerprint),
                    key.kind.clone(),
                    bounds(key.count, key.at_most),
                ],
                tone: LineTone::Limited,
            };
            snapshot.top.limited.iter().map(line).collect()
        }
        Panel::Nodes => snapshot.nodes.nodes.iter().map(node_line).collect(),
        Panel::Events => snapshot.live.events.iter().map(event_line).collect(),
    }
}

/// What an empty panel says.
pub fn empty_text(panel: Panel) -> &'static str {
    match panel {
        Panel::Rules => "no rule decided anything in the last 5 minutes",
        Panel::Keys => "no key was limited in the last minute",
        Panel::Nodes => "no node is known",
        Panel::Events => "nothing happened",
    }
}

fn rule_line(rule: &LiveRule) -> TableLine {
    let total = rule.allowed.saturating_add(rule.limited);
    let share = if total > 0 { rule.limited as f64 / total as f64 } else { 0.0 };
    let tone = if rule.limited > 0 { LineTone::Limited } else { LineTone::Plain };
    TableLine {
        cells: vec![rule.id.clone(), percent(share), grouped(total), sparkline(&rule.spark, 12)],
        tone,
    }
}

/// The last slots as bars, `width` of them: each is the largest of its slots.
pub fn sparkline(slots: &[u64], width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let per_bar = slots.len().div_ceil(width.max(1)).max(1);
    let most = slots.iter().copied().max().unwrap_or(0).max(1);
    let bars = slots.chunks(per_bar).map(|slots| slots.iter().copied().max().unwrap_or(0));
    bars.map(|value| BARS[(value as f64 / most as f64 * 8.0).ceil() as usize]).collect()
}

fn key_name(name: &str, fingerprint: &str) -> String {
    match name {
        "" => "(no identity)".to_owned(),
        // A name that is cut is told apart by its fingerprint.
        name if name.ends_with('…') => format!("{name} #{fingerprint}"),
        name => name.to_owned(),
    }
}

fn bounds(at_least: u64, at_most: u64) -> String {
    if at_most > at_least { format!("≥ {}", grouped(at_least)) } else { grouped(at_least) }
}

fn node_line(node: &ListedNode) -> TableLine {
    let (state, tone) = match node.state {
        NodeState::Healthy => ("● healthy", LineTone::Healthy),
        NodeState::Degraded => ("▲ degraded", LineTone::Degraded),
        NodeState::StaleRules => ("▲ old rules", LineTone::Limited),
        NodeState::NoStatus => ("? no status", LineTone::Plain),
    };
    let status = &node.status;
    let mut name = status.name_or_id().to_owned();
    if node.is_self {
        name += " *";
    }
    let has_status = node.state != NodeState::NoStatus;
    let revision = if has_status { status.revision.to_string() } else { "–".to_owned() };
    let rate = known(status.per_second.map(|rates| rates.decisions), number);
    let p99 = known(status.latency.p99_us, |us| format!("≤{}", duration_us(us).replace(' ', "")));
    TableLine { cells: vec![name, state.to_owned(), revision, rate, p99], tone }
}

fn event_line(event: &LiveEvent) -> TableLine {
    use tollgate_control::live::LiveEventKind::*;
    let tone = match event.kind {
        ReloadFailed | UpstreamUnhealthy => LineTone::Failed,
        BreakerOpened | BreakerHalfOpen | ClockStep | ClockDrift | NodeLeft | EmergencyOn => {
            LineTone::Degraded
        }
        BreakerClosed | UpstreamHealthy | EmergencyOff => LineTone::Healthy,
        RulesInForce | NodeJoined | Published | RolledBack => LineTone::Plain,
    };
    let time = event.t.get(11..19).unwrap_or(&event.t).to_owned();
    TableLine { cells: vec![time, event.text.clone()], tone }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (7.0, "7"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.0, "999"),
            (1_234.0, "1.23 k"),
            (45_600.0, "45.6 k"),
            (999_900.0, "1.00 M"),
            (5_100_000_000.0, "5.10 G"),
        ] {
            assert_eq!(number(value), expected);
        }
        for (us, expected) in
            [(0.25, "250 ns"), (25.0, "25 µs"), (2_500.0, "2.50 ms"), (50_000.0, "50 ms"), (1e7, "10 s")]
        {
            assert_eq!(duration_us(us), expected);
        }
        for (share, expected) in [(0.0, "0.0 %"), (0.0001, "<0.1 %"), (0.123, "12.3 %"), (1.0, "100 %")] {
            assert_eq!(percent(share), expected);
        }
    }

    #[test]
    fn sparklines_keep_peaks() {
        assert_eq!(sparkline(&[0, 1, 4, 8, 8, 0], 6), " ▁▄██ ");
        assert_eq!(sparkline(&[0, 1, 4, 8, 8, 0], 3), "▁██");
        assert_eq!(sparkline(&[], 3), "");
    }
}
