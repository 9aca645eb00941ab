//! `tensorpost holders`.

use clap::Args;

use super::figures::{Figures, HOLDERS, MEMORY, MemoryFigures, holder_cells};
use super::table::table;
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
    let look = choose::connect(&arguments.target)?.look()?;
    let memory = Figures::between(&look, &look).memory;
    if arguments.json {
        put(&(serde_json::to_string_pretty(&memory)? + "\n"))?;
        return Ok(());
    }
    let pools: Vec<_> = memory.iter().map(MemoryFigures::cells).collect();
    let mut text = table(&MEMORY, &pools) + "\n";
    let holders = holder_cells(&memory);
    text += &match holders.is_empty() {
        true => "nobody holds any of it\n".to_owned(),
        false => table(&HOLDERS, &holders),
    };
    let more: u64 = memory.iter().map(|pool| pool.more_holders).sum();
    if more > 0 {
        text += &format!("and {more} who hold less\n");
    }
    put(&text)?;
    Ok(())
}
