//! `tollgate top`: the live view of a control plane in a terminal.
//!
//! A thread with a runtime of its own asks the control plane once a second ([`feed`]); this thread draws ([`screen`]) and
//! handles keys. The terminal is restored at the end, also after a panic or a signal.

mod chart;
mod feed;
mod panels;
mod plain;
mod screen;
mod svg;
mod view_state;

use crate::command_error::CommandError;
use crate::control_plane::ControlPlaneArgs;
use crate::output;
use clap::Args;
pub use feed::FeedError;
use feed::{Feed, FeedMessage};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use screen::{Palette, draw};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use view_state::{ViewAction, ViewState};

/// Keys are looked at so often.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// The size of the picture.
const PICTURE: (u16, u16) = (120, 38);

/// The arguments of `tollgate top`.
#[derive(Args)]
pub struct TopArgs {
    #[command(flatten)]
    plane: ControlPlaneArgs,
    /// Print the figures once, as plain text, and end
    #[arg(long)]
    once: bool,
    /// With --once: print the screen as an SVG picture instead
    #[arg(long, requires = "once")]
    svg: bool,
}

/// Runs `tollgate top`.
pub fn run(args: &TopArgs) -> Result<ExitCode, CommandError> {
    let client = args.plane.client()?;
    let address = args.plane.address().to_owned();
    if args.once {
        let snapshot = feed::fetch_once(&client).map_err(CommandError::LiveFigures)?;
        let mut state = ViewState::new(address);
        state.apply(FeedMessage::Snapshot(Box::new(snapshot)));
        if args.svg {
            output::print(picture(&state)?)?;
        } else {
            output::print(plain::Plain(&state))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !io::stdout().is_terminal() {
        return Err(CommandError::NoTerminal);
    }
    let (_feed, messages) = Feed::start(client).map_err(CommandError::Thread)?;
    let mut terminal = ratatui::try_init().map_err(CommandError::Terminal)?;
    let outcome = show(&mut terminal, ViewState::new(address), &messages);
    let restored = ratatui::try_restore();
    outcome.and(restored).map_err(CommandError::Terminal)?;
    Ok(ExitCode::SUCCESS)
}

/// Draws until a key, a signal or the end of the feed.
fn show(
    terminal: &mut DefaultTerminal,
    mut state: ViewState,
    messages: &Receiver<FeedMessage>,
) -> io::Result<()> {
    let palette = Palette::of_environment();
    loop {
        terminal.draw(|frame| draw(frame, &mut state, &palette))?;
        if event::poll(KEY_WAIT)? {
            let action = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => action_of(key.code, key.modifiers),
                _ => None,
            };
            match action {
                Some(ViewAction::Quit) => return Ok(()),
                Some(action) => state.act(action),
                None => {}
            }
        }
        for message in messages.try_iter() {
            if matches!(message, FeedMessage::Stop) {
                return Ok(());
            }
            state.apply(message);
        }
    }
}

fn action_of(key: KeyCode, modifiers: KeyModifiers) -> Option<ViewAction> {
    Some(match key {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => ViewAction::Quit,
        KeyCode::Char('q') | KeyCode::Esc => ViewAction::Quit,
        KeyCode::Char('p') | KeyCode::Char(' ') => ViewAction::Pause,
        KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => ViewAction::NextPanel,
        KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => ViewAction::PreviousPanel,
        KeyCode::Down | KeyCode::Char('j') => ViewAction::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => ViewAction::Scroll(-1),
        KeyCode::PageDown => ViewAction::Scroll(10),
        KeyCode::PageUp => ViewAction::Scroll(-10),
        _ => return None,
    })
}

/// The screen as an SVG picture.
fn picture(state: &ViewState) -> Result<String, CommandError> {
    let (width, height) = PICTURE;
    let mut terminal = Terminal::new(TestBackend::new(width, height))
        .map_err(|error| CommandError::Terminal(io::Error::other(error)))?;
    let mut state = state.clone();
    terminal
        .draw(|frame| draw(frame, &mut state, &Palette::colored()))
        .map_err(|error| CommandError::Terminal(io::Error::other(error)))?;
    Ok(svg::render(terminal.backend().buffer()))
}
