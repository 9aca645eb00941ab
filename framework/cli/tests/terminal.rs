//! `tensorpost top` in a real terminal, tmux's, at two sizes. Without tmux the test is ignored, and says so;
//! with `TENSORPOST_REQUIRE_TMUX=1` it fails then.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use tensorpost::prelude::*;

/// Counts its messages.
struct Counter(u64);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Count;

impl Actor for Counter {
    type Context = Context<Self>;
}

impl RemoteActor for Counter {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Counter(0))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Count>();
    }
}

impl Handler<Count> for Counter {
    type Result = MessageResult<Count>;

    fn handle(&mut self, _: Count, _: &mut Context<Self>) -> Self::Result {
        self.0 += 1;
        MessageResult(self.0)
    }
}

/// A terminal of a tmux server of its own, with the command in it.
struct Terminal {
    server: String,
    folder: std::path::PathBuf,
}

impl Terminal {
    fn start(width: u32, height: u32) -> anyhow::Result<Terminal> {
        let server = format!("tensorpost-{}-{width}", std::process::id());
        let folder = std::env::temp_dir().join(&server);
        std::fs::create_dir_all(&folder)?;
        let terminal = Terminal { server, folder };
        let top = format!("'{}' top --every 100ms {}", env!("CARGO_BIN_EXE_tensorpost"), std::process::id());
        let (width, height) = (width.to_string(), height.to_string());
        let folder = terminal.folder.display().to_string();
        // Use no configuration of the user's; the pane stays when the command ends.
        let session = ["new-session", "-d", "-x", &width, "-y", &height, "-c", &folder, "sh"];
        let started = terminal.tmux(&session)?;
        anyhow::ensure!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        terminal.tmux(&["send-keys", "-l", &format!("{top}; echo over")])?;
        terminal.tmux(&["send-keys", "Enter"])?;
        Ok(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &self.server, "-f", "/dev/null"]).args(arguments).env("TERM", "screen-256color");
        Ok(tmux.output()?)
    }

    fn screen(&self) -> anyhow::Result<Vec<String>> {
        let shown = self.tmux(&["capture-pane", "-p"])?.stdout;
        Ok(String::from_utf8(shown)?.lines().map(str::to_owned).collect())
    }

    fn press(&self, key: &str) -> anyhow::Result<()> {
        self.tmux(&["send-keys", key]).map(drop)
    }

    /// Waits until the screen is right.
    fn until(&self, what: &str, right: impl Fn(&[String]) -> bool) -> anyhow::Result<Vec<String>> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let screen = self.screen()?;
            if right(&screen) {
                return Ok(screen);
            }
            anyhow::ensure!(Instant::now() < deadline, "{what} is not seen:\n{}", screen.join("\n"));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Anything that is left of it ends with this process's folder.
        let _ = self.tmux(&["kill-server"]);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn has(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line.contains(text))
}

fn top_at(width: u32, height: u32) -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let counter = node.spawn::<Counter>(()).name("counter").start()?;
    node.block_on(counter.address().ask(Count))?;
    let terminal = Terminal::start(width, height)?;
    let keys = |screen: &[String]| screen.iter().any(|line| line.starts_with("q quit"));
    let actors = terminal.until("the actor", |screen| {
        screen.iter().any(|line| line.starts_with("counter ") && line.ends_with("running")) && keys(screen)
    })?;
    anyhow::ensure!(actors[0].starts_with(&format!("node {}", std::process::id())), "{actors:#?}");
    anyhow::ensure!(actors.len() as u32 <= height, "{actors:#?}");
    anyhow::ensure!(actors.iter().all(|line| line.chars().count() as u32 <= width), "{actors:#?}");
    // A large terminal shows all columns, a small one the most wanted.
    anyhow::ensure!(has(&actors, "MSG/S") && has(&actors, "WAITED") == (width >= 200), "{actors:#?}");
    for (key, title) in [("2", "MEMORY OF"), ("3", "DEAD LETTERS"), ("1", "ACTOR")] {
        terminal.press(key)?;
        terminal.until(title, |screen| has(screen, title))?;
    }
    terminal.press("/")?;
    terminal.press("x")?;
    terminal.press("Enter")?;
    terminal.until("the filter", |screen| has(screen, "filter: x") && !has(screen, "running"))?;
    terminal.press("Escape")?;
    terminal.until("the actor again", |screen| has(screen, "running"))?;
    if width >= 200 {
        terminal.press("t")?;
        terminal.until("the trace runs", |screen| has(screen, "tracing …"))?;
        let name = format!("tensorpost-{}-1.json", std::process::id());
        terminal.until("the trace's name", |screen| has(screen, &format!("trace: {name}")))?;
        anyhow::ensure!(std::fs::read_to_string(terminal.folder.join(&name))?.contains("traceEvents"));
    }
    terminal.press("q")?;
    terminal.until("the terminal as it was", |screen| has(screen, "over") && !keys(screen))?;
    Ok(())
}

fn main() {
    let is_missing = Command::new("tmux").arg("-V").output().is_err();
    let is_required = std::env::var_os("TENSORPOST_REQUIRE_TMUX").is_some_and(|required| required == "1");
    if is_missing && !is_required {
        eprintln!(
            "IGNORED: there is no tmux here, so `tensorpost top` is not tried in a terminal: apt install tmux"
        );
    }
    let trial = |width, height| {
        let tried = move || top_at(width, height).map_err(|error| Failed::from(format!("{error:?}")));
        Trial::test(format!("top_at_{width}x{height}"), tried).with_ignored_flag(is_missing && !is_required)
    };
    // Run the tests one after the other: each has a node of this process.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, vec![trial(80, 24), trial(200, 60)]).exit()
}
