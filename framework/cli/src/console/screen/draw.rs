//! Draws the screen on a terminal of any size.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Drawn, Wrap};
use tensorpost_watch::console::{ProcessState, Severity, tables};
use tensorpost_watch::draw::{self, Table, is_right, plain_title, shortened};

use super::super::log::plain;
use super::app::{App, Tab, Trace};

/// The distance between columns.
const GAP: usize = 2;
/// The first column is not made narrower than this.
const NARROWEST: usize = 8;

pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let parts = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
    let [top, tabs, body, bottom] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(status(app)), top);
    frame.render_widget(Paragraph::new(tab_line(app)), tabs);
    match app.tab {
        Tab::Log => log(app, frame, body),
        Tab::Hangs => hangs(app, frame, body),
        Tab::Actors | Tab::Memory | Tab::Links => tables(app, frame, body),
    }
    frame.render_widget(Paragraph::new(keys(app)), bottom);
}

fn colour(app: &App, colour: Color) -> Style {
    if app.has_colours { Style::new().fg(colour) } else { Style::new() }
}

fn status(app: &App) -> Line<'_> {
    let mut spans = Vec::new();
    if let Some(end) = &app.end {
        spans.push(Span::styled(format!("{end}. "), colour(app, Color::Red).add_modifier(Modifier::BOLD)));
    }
    if app.is_frozen {
        spans.push(Span::styled("FROZEN ", colour(app, Color::Yellow).add_modifier(Modifier::BOLD)));
    }
    spans.push(Span::raw(app.figures.as_ref().map_or("looking …".to_owned(), tables::line)));
    Line::from(spans)
}

fn tab_line(app: &App) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, tab) in Tab::ALL.into_iter().enumerate() {
        let count = match tab {
            Tab::Hangs => app.stalled.len(),
            _ => 0,
        };
        let count = if count > 0 { format!(" ({count})") } else { String::new() };
        let style = if tab == app.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(format!(" {} {}{count} ", index + 1, tab.title()), style));
    }
    Line::from(spans)
}

fn keys(app: &App) -> Line<'_> {
    if app.is_typing {
        return Line::from(format!("/{}▏ Enter keeps it, Esc clears it", app.filter));
    }
    let mut text = "q quit  Tab next  s sort  r reverse  / filter  f freeze  t trace 5 s".to_owned();
    if !app.filter.is_empty() {
        text = format!("filter: {} (Esc clears it)  {text}", app.filter);
    }
    let keys = Span::styled(text, Style::new().add_modifier(Modifier::DIM));
    match &app.trace {
        Trace::None => Line::from(keys),
        Trace::Wanted | Trace::Runs => Line::from(vec![Span::raw("tracing …  "), keys]),
        Trace::Done(said) => Line::from(vec![Span::raw(format!("{said} (Esc)  ")), keys]),
    }
}

/// Draws the tables of a tab, one below the other: the first one scrolls and has the room that the others
/// leave.
fn tables(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let tables = app.tables();
    let height = |table: &Table| (table.rows.len() + 2) as u16;
    let others = tables.iter().skip(1).map(|table| Constraint::Length(height(table).min(area.height / 2)));
    let constraints: Vec<_> = std::iter::once(Constraint::Min(0)).chain(others).collect();
    let areas = Layout::vertical(constraints).split(area);
    for (index, (table, area)) in tables.iter().zip(areas.iter()).enumerate() {
        let (sort, scroll) = if index == 0 { (app.sort, app.scroll) } else { (None, 0) };
        one_table(app, frame, *area, table, sort, scroll);
    }
}

fn one_table(
    app: &App,
    frame: &mut Frame<'_>,
    area: Rect,
    table: &Table,
    sort: Option<(usize, bool)>,
    scroll: usize,
) {
    let columns = columns(table, usize::from(area.width), sort.map(|(column, _)| column));
    let title = |(column, _): &(usize, u16)| {
        let mark = match sort {
            Some((sorted, down)) if sorted == *column => {
                if down {
                    "▼"
                } else {
                    "▲"
                }
            }
            _ => "",
        };
        cell(format!("{}{mark}", plain_title(table.titles[*column])), is_right(table.titles[*column]))
    };
    let header = Row::new(columns.iter().map(title)).style(Style::new().add_modifier(Modifier::BOLD));
    let room = usize::from(area.height.saturating_sub(1));
    let first = scroll.min(table.rows.len().saturating_sub(room.max(1)));
    let rows = table.rows.iter().skip(first).take(room).map(|row| {
        let cells = columns.iter().map(|(column, width)| {
            let text = row.get(*column).map_or("", |cell| cell.text.as_str());
            cell(shortened(text, usize::from(*width)), is_right(table.titles[*column]))
        });
        Row::new(cells).style(row_style(app, row))
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    frame.render_widget(Drawn::new(rows, widths).header(header).column_spacing(GAP as u16), area);
}

/// Returns the style of a row: rows of actors and processes that do not run stand out.
fn row_style(app: &App, row: &[draw::Cell]) -> Style {
    let says = |state: ProcessState| row.iter().any(|cell| cell.text == state.to_string());
    match () {
        () if says(ProcessState::Silent) || says(ProcessState::Ended) => colour(app, Color::Red),
        () if says(ProcessState::Restarting) || says(ProcessState::Starting) => colour(app, Color::Yellow),
        () => Style::new(),
    }
}

fn cell(text: String, is_right: bool) -> Cell<'static> {
    let alignment = if is_right { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(text).alignment(alignment))
}

/// Returns the columns that fit, with their widths. The sorted column always stays.
fn columns(table: &Table, room: usize, sorted: Option<usize>) -> Vec<(usize, u16)> {
    let mut widths: Vec<_> = table.widths().into_iter().enumerate().collect();
    if let Some((_, width)) = sorted.and_then(|sorted| widths.get_mut(sorted)) {
        // Room for the mark behind its title.
        *width += 1;
    }
    let taken = |widths: &[(usize, usize)]| {
        widths.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP)
    };
    for dispensable in table.dispensable.iter().filter(|column| sorted != Some(**column)) {
        if taken(&widths) > room {
            widths.retain(|(column, _)| column != dispensable);
        }
    }
    let over = taken(&widths).saturating_sub(room);
    if let Some((_, width)) = widths.first_mut() {
        *width = width.saturating_sub(over).max(NARROWEST.min(*width));
    }
    widths.into_iter().map(|(column, width)| (column, u16::try_from(width).unwrap_or(u16::MAX))).collect()
}

/// Draws the log with the newest records at the bottom; scrolling goes up from there.
fn log(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let shown: Vec<_> = app.lines.iter().map(|line| (line.severity, plain(line))).collect();
    let shown: Vec<_> = shown.iter().filter(|(_, text)| app.passes(text)).collect();
    let end = shown.len().saturating_sub(app.scroll).max(usize::from(area.height).min(shown.len()));
    let first = end.saturating_sub(usize::from(area.height));
    let lines: Vec<_> = shown[first..end]
        .iter()
        .flat_map(|(severity, text)| {
            let style = match severity {
                Severity::Error => colour(app, Color::Red),
                Severity::Warn => colour(app, Color::Yellow),
                _ => Style::new(),
            };
            text.lines().map(move |line| Line::styled(line, style))
        })
        .collect();
    let surplus = lines.len().saturating_sub(usize::from(area.height));
    let text = if shown.is_empty() { Text::from("nothing is in the log") } else { Text::from(lines) };
    frame.render_widget(Paragraph::new(text).scroll((surplus as u16, 0)), area);
}

fn hangs(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let mut lines: Vec<_> = app
        .stalled
        .iter()
        .filter(|line| app.passes(line))
        .map(|line| Line::styled(line.as_str(), colour(app, Color::Red)))
        .collect();
    if lines.is_empty() {
        lines.push(Line::from("nothing stands still now"));
    }
    let reported = app.figures.as_ref().map(|figures| figures.hangs.as_slice()).unwrap_or_default();
    if !reported.is_empty() {
        lines.extend([Line::from(""), Line::from("reported earlier:")]);
        lines.extend(reported.iter().filter(|line| app.passes(line)).map(|line| Line::from(line.as_str())));
    }
    let scroll = u16::try_from(app.scroll).unwrap_or(u16::MAX);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scroll, 0)), area);
}
