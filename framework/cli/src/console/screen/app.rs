//! The contents of the screen, and the effects of keys.

use std::cmp::Ordering;
use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tensorpost_watch::console::{Figures, LogLine, NodeSnapshot, tables};
use tensorpost_watch::draw::Table;

use super::super::hangs::stalled;

/// Number of log records that are kept.
const MAX_LINES: usize = 2048;

/// The tabs of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Actors,
    Memory,
    Links,
    Log,
    Hangs,
}

impl Tab {
    pub(super) const ALL: [Tab; 5] = [Tab::Actors, Tab::Memory, Tab::Links, Tab::Log, Tab::Hangs];

    pub(super) fn title(self) -> &'static str {
        match self {
            Tab::Actors => "Actors",
            Tab::Memory => "Memory",
            Tab::Links => "Links",
            Tab::Log => "Log",
            Tab::Hangs => "Hangs",
        }
    }

    fn at(index: usize) -> Tab {
        Self::ALL[index % Self::ALL.len()]
    }

    fn index(self) -> usize {
        Self::ALL.iter().position(|tab| *tab == self).unwrap_or_default()
    }
}

/// The state of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// Nobody has asked for one.
    None,
    /// The key was pressed.
    Wanted,
    /// It is on.
    Runs,
    /// It has ended, with this result.
    Done(String),
}

/// See the module.
pub(super) struct App {
    pub(super) tab: Tab,
    /// The column that the first table of the tab is sorted by, and whether the largest come first.
    pub(super) sort: Option<(usize, bool)>,
    pub(super) filter: String,
    /// Whether keys go into the filter.
    pub(super) is_typing: bool,
    pub(super) is_frozen: bool,
    /// The first row that is shown.
    pub(super) scroll: usize,
    pub(super) figures: Option<Figures>,
    pub(super) stalled: Vec<String>,
    pub(super) lines: VecDeque<LogLine>,
    /// The reason why nothing more comes.
    pub(super) end: Option<String>,
    pub(super) has_colours: bool,
    pub(super) trace: Trace,
    earlier: Option<NodeSnapshot>,
    is_done: bool,
}

impl App {
    pub(super) fn new(has_colours: bool) -> App {
        App {
            tab: Tab::Actors,
            sort: None,
            filter: String::new(),
            is_typing: false,
            is_frozen: false,
            scroll: 0,
            figures: None,
            stalled: Vec::new(),
            lines: VecDeque::new(),
            end: None,
            has_colours,
            trace: Trace::None,
            earlier: None,
            is_done: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes a new snapshot and the new log records. A frozen screen stays as it is; snapshots that come
    /// meanwhile count later.
    pub(super) fn take(&mut self, snapshot: NodeSnapshot, lines: Vec<LogLine>) {
        self.lines.extend(lines);
        let surplus = self.lines.len().saturating_sub(MAX_LINES);
        self.lines.drain(..surplus);
        let earlier = self.earlier.replace(snapshot);
        let Some(now) = self.earlier.as_ref().filter(|_| !self.is_frozen) else { return };
        // With one snapshot only, nothing has a rate.
        let earlier = earlier.as_ref().unwrap_or(now);
        self.figures = Some(Figures::between(earlier, now));
        self.stalled = stalled(earlier, now);
    }

    /// Returns whether a trace has to begin now. It returns true once.
    pub(super) fn begins_trace(&mut self) -> bool {
        let begins = self.trace == Trace::Wanted;
        if begins {
            self.trace = Trace::Runs;
        }
        begins
    }

    /// Takes the result of the trace.
    pub(super) fn traced(&mut self, said: String) {
        self.trace = Trace::Done(said);
    }

    pub(super) fn ended(&mut self, why: String) {
        self.end = Some(why);
    }

    pub(super) fn key(&mut self, key: KeyEvent) {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            self.is_done = true;
            return;
        }
        if self.is_typing {
            return self.typed(key.code);
        }
        match key.code {
            KeyCode::Char('q') => self.is_done = true,
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.show(Tab::at(self.tab.index() + 1)),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => {
                self.show(Tab::at(self.tab.index() + Tab::ALL.len() - 1));
            }
            KeyCode::Char(digit @ '1'..='5') => self.show(Tab::at(digit as usize - '1' as usize)),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += 10,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('f') => self.is_frozen = !self.is_frozen,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.sort = self.sort.map(|(column, down)| (column, !down)),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('t') if self.trace != Trace::Runs => self.trace = Trace::Wanted,
            KeyCode::Esc if matches!(self.trace, Trace::Done(_)) => self.trace = Trace::None,
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
    }

    fn typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.scroll = 0;
    }

    fn show(&mut self, tab: Tab) {
        (self.tab, self.scroll, self.sort) = (tab, 0, None);
    }

    fn sort_by_next(&mut self) {
        let columns = self.tables().first().map_or(0, |table| table.titles.len());
        let next = self.sort.map_or(0, |(column, _)| column + 1);
        // The node's own order comes behind the last column.
        self.sort = (next < columns).then_some((next, true));
    }

    /// Returns the tables of the tab: all are filtered, and the first one is sorted.
    pub(super) fn tables(&self) -> Vec<Table> {
        let Some(figures) = &self.figures else { return Vec::new() };
        let mut tables = match self.tab {
            Tab::Actors => vec![tables::actors(&figures.actors)],
            Tab::Memory => vec![tables::memory(&figures.memory), tables::holders(&figures.memory)],
            Tab::Links => vec![tables::links(&figures.links), tables::processes(&figures.processes)],
            Tab::Log | Tab::Hangs => Vec::new(),
        };
        for table in &mut tables {
            table.rows.retain(|row| row.iter().any(|cell| self.passes(&cell.text)));
        }
        if let Some(((column, down), first)) = self.sort.zip(tables.first_mut()) {
            first.rows.sort_by(|a, b| {
                let order = a.get(column).zip(b.get(column)).map_or(Ordering::Equal, |(a, b)| a.order(b));
                if down { order.reverse() } else { order }
            });
        }
        tables
    }

    /// Returns whether the filter lets a text through; case does not matter.
    pub(super) fn passes(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}
