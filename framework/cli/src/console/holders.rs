//! `tensorpost holders`.

use clap::Args;
use tensorpost_watch::console::{Figures, tables};

use super::{Target, choose, put};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print a JSON list of pools with their holders
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let snapshot = choose::connect(&arguments.target)?.snapshot()?;
    let Figures { memory, links, .. } = Figures::between(&snapshot, &snapshot);
    if arguments.json {
        put(&(serde_json::to_string_pretty(&memory)? + "\n"))?;
        return Ok(());
    }
    let holders = tables::holders(&memory);
    let mut text = tables::memory(&memory).plain() + "\n";
    text += &match holders.rows.is_empty() {
        true => "no process holds any memory\n".to_owned(),
        false => holders.plain(),
    };
    let more: u64 = memory.iter().map(|pool| pool.more_holders).fold(0, u64::saturating_add);
    if more > 0 {
        text += &format!("and {more} more that hold less\n");
    }
    for (link, (kept, most)) in links.iter().filter_map(|link| Some((link, link.at_limit()?))) {
        text += &format!(
            "{} holds {kept} tensors of {}, of {most} that one process may hold of another, and is sent no more until it drops \
             some; small ones that it keeps can be copies\n",
            link.to, link.from
        );
    }
    put(&text)?;
    Ok(())
}
