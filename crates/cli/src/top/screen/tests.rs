//! The whole screen, as text. `TOLLGATE_UPDATE_SCREENS=1` writes the expected ones.

use super::*;
use crate::top::feed::{FeedMessage, LiveSnapshot};
use crate::top::view_state::ViewAction;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use std::path::Path;
use std::time::Duration;
use tollgate_control::live::{
    FleetNodes, FrequentKey, ListedNode, LiveEvent, LiveEventKind, LiveNow, LivePoint, LiveReport, LiveRule,
    NodeLatency, NodeRates, NodeState, NodeStatus, NodeTop,
};

fn snapshot() -> LiveSnapshot {
    let point = |second: u64| {
        let wave = 500 + 300 * (second / 30 % 2);
        let is_known = second >= 40;
        let known = |count: u64| is_known.then_some(count);
        LivePoint {
            allowed: known(wave),
            limited: known(if second > 200 { 200 } else { 20 }),
            denied: known(if second > 250 { 5 } else { 0 }),
            degraded: known(if (120..150).contains(&second) { 300 } else { 0 }),
            shadow_limited: known(0),
            ..LivePoint::default()
        }
    };
    let rule = |id: &str, allowed, limited, slope: u64| LiveRule {
        id: id.to_owned(),
        allowed,
        limited,
        spark: (0..60).map(|slot| slot * slope).collect(),
    };
    let key = |name: &str, kind: &str, count, at_most| FrequentKey {
        kind: kind.to_owned(),
        name: name.to_owned(),
        fingerprint: "a1b2c3d4".to_owned(),
        count,
        at_most,
    };
    let node = |address: &str, state, decisions| ListedNode {
        state,
        is_self: address.ends_with("1:8080"),
        status: NodeStatus {
            id: format!("id of {address}"),
            name: address.replace("10.0.0.", "edge-").replace(":8080", ""),
            address: address.to_owned(),
            revision: 12,
            per_second: Some(NodeRates { decisions, ..NodeRates::default() }),
            latency: NodeLatency { p99_us: Some(25.0), ..NodeLatency::default() },
            ..NodeStatus::default()
        },
        ..ListedNode::default()
    };
    let event =
        |id, t: &str, kind, text: &str| LiveEvent { id, t: t.to_owned(), kind, text: text.to_owned() };
    LiveSnapshot {
        live: LiveReport {
            nodes: 3,
            step_seconds: 1,
            now: LiveNow {
                decisions_per_second: Some(1_005.0),
                limited_share: Some(0.199),
                degraded_share: Some(0.0),
                p50_us: Some(0.5),
                p99_us: Some(25.0),
                ..LiveNow::default()
            },
            points: (0..300).map(point).collect(),
            rules: vec![
                rule("login", 120, 880, 3),
                rule("plan", 150_000, 9_000, 1),
                rule("search", 4_000, 0, 0),
            ],
            events: vec![
                event(
                    3,
                    "2027-01-15T08:04:10Z",
                    LiveEventKind::BreakerClosed,
                    "shard 0 (10.0.0.5:6379) available: breaker closed",
                ),
                event(
                    2,
                    "2027-01-15T08:03:40Z",
                    LiveEventKind::BreakerOpened,
                    "shard 0 (10.0.0.5:6379) unavailable: breaker opened",
                ),
                event(1, "2027-01-15T08:00:00Z", LiveEventKind::RulesInForce, "revision 12 is in force"),
            ],
        },
        nodes: FleetNodes {
            nodes: vec![
                node("10.0.0.1:8080", NodeState::Healthy, 420.0),
                node("10.0.0.2:8080", NodeState::Degraded, 1_234.5),
                ListedNode { state: NodeState::NoStatus, ..node("10.0.0.3:8080", NodeState::NoStatus, 0.0) },
            ],
            complete: true,
        },
        top: NodeTop {
            limited: vec![key("203.0.113.66", "ip", 880, 880), key("sk_free_…", "api_key", 1_200, 1_260)],
            ..NodeTop::default()
        },
    }
}

fn state() -> ViewState {
    let mut state = ViewState::new("http://127.0.0.1:9090".to_owned());
    state.apply(FeedMessage::Snapshot(Box::new(snapshot())));
    state
}

fn drawn(state: &mut ViewState, width: u16, height: u16, palette: &Palette) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, palette)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let row = |y: u16| -> String { (0..area.width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..area.height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
}

fn assert_screen(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/screen").join(name);
    if std::env::var_os("TOLLGATE_UPDATE_SCREENS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{name} differs:\n{found}");
}

#[test]
fn a_wide_terminal_shows_everything() {
    assert_screen("wide.txt", &text(&drawn(&mut state(), 110, 34, &Palette::colored())));
}

#[test]
fn a_narrow_terminal_shows_the_selected_table() {
    let mut state = state();
    state.act(ViewAction::NextPanel);
    state.act(ViewAction::NextPanel);
    assert_screen("narrow.txt", &text(&drawn(&mut state, 50, 24, &Palette::colored())));
}

#[test]
fn a_lost_connection_and_a_pause_are_seen() {
    let mut state = state();
    state.act(ViewAction::Pause);
    assert!(text(&drawn(&mut state, 110, 34, &Palette::colored())).contains("‖ paused"));
    state.apply(FeedMessage::Failed("cannot connect\nto it".to_owned(), Duration::from_millis(1_500)));
    let lost = text(&drawn(&mut state, 110, 34, &Palette::colored()));
    let head = lost.lines().next().unwrap();
    assert!(head.contains("✗ not connected: figures are 0 s old; next attempt in 1.5 s: can"), "{head}");
    let mut empty = ViewState::new("http://127.0.0.1:9090".to_owned());
    let connecting = text(&drawn(&mut empty, 110, 34, &Palette::colored()));
    assert!(connecting.contains("… connecting") && connecting.contains("no figures yet"), "{connecting}");
}

#[test]
fn colours_are_an_addition() {
    let (colored, plain) = (Palette::colored(), Palette { is_colored: false });
    let with = drawn(&mut state(), 110, 34, &colored);
    let without = drawn(&mut state(), 110, 34, &plain);
    assert_eq!(text(&with), text(&without), "words and patterns say the same");
    let colors = |buffer: &Buffer| buffer.content().iter().filter(|cell| cell.fg != Color::Reset).count();
    assert!(colors(&with) > 100 && colors(&without) == 0);
}

#[test]
fn tables_scroll_to_their_end_and_no_size_is_too_small() {
    let mut state = state();
    let rules = &mut state.snapshot.as_mut().unwrap().live.rules;
    *rules = (0..40)
        .map(|number| LiveRule { id: format!("rule-{number:02}"), allowed: 1, ..LiveRule::default() })
        .collect();
    state.act(ViewAction::Scroll(1_000));
    let shown = text(&drawn(&mut state, 110, 34, &Palette::colored()));
    assert!(shown.contains("rule-39") && shown.contains("of 40") && !shown.contains("rule-00"), "{shown}");
    state.act(ViewAction::Scroll(-1_000));
    assert!(text(&drawn(&mut state, 110, 34, &Palette::colored())).contains("rule-00"));
    for (width, height) in [(1, 1), (5, 3), (20, 8), (84, 28), (83, 60), (300, 90)] {
        drawn(&mut state, width, height, &Palette::colored());
    }
}
