//! The screen, drawn into memory.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tensorpost_watch::console::sample::snapshot;
use tensorpost_watch::console::{LogLine, Severity};

use super::app::App;
use super::draw::draw;

fn line(number: u64, severity: Severity, text: &str) -> LogLine {
    let worker = Some("camera.0".to_owned());
    LogLine {
        number,
        unix_ms: 0,
        severity,
        host: None,
        worker,
        target: "demo".to_owned(),
        text: text.to_owned(),
    }
}

/// Returns an app with two snapshots, a second apart: the camera handled 500 messages, the stage none.
fn app() -> App {
    let mut app = App::new(true);
    app.take(snapshot(0, [1000, 20]), vec![line(1, Severity::Info, "began")]);
    app.take(snapshot(1_000_000_000, [1500, 20]), vec![line(2, Severity::Error, "lost a frame")]);
    app
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
        app.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

fn drawn(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    terminal.draw(|frame| draw(app, frame)).expect("it is drawn");
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).map(|row| row.trim_end().to_owned()).collect()
}

#[test]
fn the_actors_are_there_at_both_sizes_and_a_large_one_shows_all_columns() {
    let small = drawn(&app(), 80, 24);
    assert_eq!(small[0], "node 100 (demo), up 75.0 s, 500 msg/s, 1.0 MiB in flight");
    assert!(small[2].starts_with("ACTOR") && small[2].ends_with("STATE"), "{}", small[2]);
    assert!(
        !small[2].contains("WAITED") && small[2].contains("MSG/S") && small[2].contains("QUEUE"),
        "{}",
        small[2]
    );
    assert!(small[3].starts_with("camera.0") && small[3].contains("500"), "{}", small[3]);
    assert!(small[4].starts_with("a-stage-with") && small[4].contains('…'), "{}", small[4]);
    assert!(small[4].contains("3/16") && small[4].ends_with("running"), "{}", small[4]);
    assert!(small[23].starts_with("q quit"));

    let large = drawn(&app(), 200, 60);
    for title in ["PROCESS", "DEVICE", "P50", "P99", "BUSY", "HANDLED", "WAITED", "RESTARTS"] {
        assert!(large[2].contains(title), "{}", large[2]);
    }
    assert!(large[4].contains("a-stage-with-a-name-that-is-longer-than-others  stage"), "{}", large[4]);
    assert!(large[59].starts_with("q quit"));
    // Nothing panics, even on the smallest screen.
    for (width, height) in [(1, 1), (8, 3), (20, 5), (500, 2)] {
        for tab in "12345".chars() {
            let mut app = app();
            press(&mut app, &tab.to_string());
            drawn(&app, width, height);
        }
    }
}

#[test]
fn each_tab_shows_what_it_is_called_for() {
    let mut app = app();
    press(&mut app, "2");
    let memory = drawn(&app, 100, 30).join("\n");
    assert!(
        memory.contains("MEMORY OF") && memory.contains("HOLDER") && memory.contains("1.5 s"),
        "{memory}"
    );
    press(&mut app, "3");
    let links = drawn(&app, 100, 30).join("\n");
    assert!(links.contains("LEASES LENT") && links.contains("DEAD LETTERS"), "{links}");
    press(&mut app, "4");
    let log = drawn(&app, 100, 30).join("\n");
    assert!(log.contains("ERROR demo [camera.0]: lost a frame"), "{log}");
    press(&mut app, "5");
    let hangs = drawn(&app, 100, 30).join("\n");
    assert!(hangs.contains("5 Hangs (2)") && hangs.contains("does not move: 3 messages are open"), "{hangs}");
    app.key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
    assert!(drawn(&app, 100, 30)[2].starts_with("ACTOR"));
}

#[test]
fn keys_sort_filter_freeze_and_leave() {
    let mut app = app();
    let first = |app: &App| drawn(app, 200, 24)[3].split_whitespace().next().unwrap_or_default().to_owned();
    assert_eq!(first(&app), "camera.0");
    // Sort by the eighth column, the queue, the longest first; then the shortest first.
    press(&mut app, "ssssssss");
    assert!(first(&app).starts_with("a-stage"), "{:?}", drawn(&app, 200, 24));
    press(&mut app, "r");
    assert_eq!(first(&app), "camera.0");

    press(&mut app, "/STAGE\n");
    assert!(first(&app).starts_with("a-stage"));
    assert!(drawn(&app, 200, 24)[23].starts_with("filter: STAGE"));
    app.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    assert_eq!(first(&app), "camera.0");

    press(&mut app, "f");
    app.take(snapshot(2_000_000_000, [9000, 20]), Vec::new());
    let frozen = drawn(&app, 100, 24)[0].clone();
    assert!(frozen.starts_with("FROZEN") && frozen.contains("500 msg/s"), "{frozen}");
    press(&mut app, "f");
    app.take(snapshot(3_000_000_000, [9100, 20]), Vec::new());
    assert!(drawn(&app, 100, 24)[0].contains("100 msg/s"));

    let last = |app: &App| drawn(app, 100, 24)[23].clone();
    assert!(!app.begins_trace());
    press(&mut app, "tt");
    assert!(app.begins_trace() && !app.begins_trace());
    assert!(last(&app).starts_with("tracing …  q quit"), "{}", last(&app));
    press(&mut app, "t");
    assert!(!app.begins_trace(), "one at a time");
    app.traced("trace: tensorpost-100-1.json, 7 records".to_owned());
    assert!(last(&app).starts_with("trace: tensorpost-100-1.json, 7 records (Esc)"), "{}", last(&app));
    app.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    assert!(last(&app).starts_with("q quit"));

    app.ended("the node has ended".to_owned());
    assert!(drawn(&app, 100, 24)[0].starts_with("the node has ended"));
    assert!(!app.is_done());
    press(&mut app, "q");
    assert!(app.is_done());
}
