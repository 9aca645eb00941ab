//! The histories of items, which the oracle compares. Also the logs in which every part writes down the items
//! that it got.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An item's history: its origin and every stage that it has passed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Past {
    /// The number of the source's operator.
    pub source: u16,
    /// The item's number at that source.
    pub number: u64,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// A stage that an item has passed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    /// An operator, and the index of this item among the results for one item.
    At(u16, u16),
    /// The dead letters of an operator.
    Dead(u16),
    /// A pair, with the right item.
    With(u16, Box<Past>),
    /// A batch or a window, with the other items.
    Among(u16, Vec<Past>),
}

impl Step {
    /// Returns the operator's number.
    pub fn op(&self) -> u16 {
        match self {
            Step::At(op, _) | Step::Dead(op) | Step::With(op, _) | Step::Among(op, _) => *op,
        }
    }
}

impl Past {
    /// Returns the history of a new item.
    pub fn new(source: u16, number: u64) -> Past {
        Past { source, number, steps: Vec::new() }
    }

    /// Returns the history with one more step.
    pub fn then(&self, step: Step) -> Past {
        let mut past = self.clone();
        past.steps.push(step);
        past
    }

    /// Returns the history without its last step.
    pub fn before(&self) -> Past {
        let mut past = self.clone();
        past.steps.pop();
        past
    }

    /// Returns how often the item has passed `turn` since it last passed `outer`.
    pub fn rounds(&self, turn: u16, outer: Option<u16>) -> u64 {
        let steps = self.steps.iter().rev().filter_map(|step| match step {
            Step::At(op, _) => Some(*op),
            _ => None,
        });
        steps.take_while(|op| Some(*op) != outer).filter(|op| *op == turn).count() as u64
    }

    /// Returns the source items of which the item is made: first the one by which the framework names it,
    /// then the others.
    pub fn atoms(&self) -> Vec<(u16, u64)> {
        let mut atoms = vec![(self.source, self.number)];
        for step in &self.steps {
            match step {
                Step::With(_, other) => atoms.extend(other.atoms()),
                Step::Among(_, others) => atoms.extend(others.iter().flat_map(Past::atoms)),
                Step::At(..) | Step::Dead(_) => {}
            }
        }
        atoms
    }
}

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.source, self.number)?;
        for step in &self.steps {
            match step {
                Step::At(op, 0) => write!(f, ">{op}")?,
                Step::At(op, copy) => write!(f, ">{op}.{copy}")?,
                Step::Dead(op) => write!(f, ">{op}dead")?,
                Step::With(op, other) => write!(f, ">{op}({other})")?,
                Step::Among(op, others) => {
                    write!(f, ">{op}[")?;
                    for (index, other) in others.iter().enumerate() {
                        write!(f, "{}{other}", if index > 0 { " " } else { "" })?;
                    }
                    write!(f, "]")?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Histories, each with how often it occurs.
pub type Bag = BTreeMap<Past, u32>;

/// The owner of a log: an operator, or the stage that takes its dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The operator's number.
    pub op: u16,
    /// Whether it is the stage behind its dead letters.
    pub dead: bool,
}

impl Place {
    /// Returns the place of an operator itself.
    pub fn of(op: u16) -> Place {
        Place { op, dead: false }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.op, if self.dead { "d" } else { "" })
    }
}

/// Logs the items that an actor got. Each process has a file, which is appended at each item, so a death
/// loses none of them.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    place: Place,
    file: Option<File>,
}

/// A clone opens its own file: closures are cloned before they come to their process.
impl Clone for Log {
    fn clone(&self) -> Self {
        Log { folder: self.folder.clone(), place: self.place, file: None }
    }
}

impl Log {
    /// Makes a log in this folder.
    pub fn new(folder: &Path, place: Place) -> Log {
        Log { folder: folder.to_owned(), place, file: None }
    }

    /// Writes an item down, with the life of the source that made it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, life: u32, past: &Past) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                // Several replicas may be in one process.
                let name = (0..).map(|n| format!("{}-{}-{n}.log", self.place, std::process::id()));
                let mut open = name.map(|name| {
                    OpenOptions::new().append(true).create_new(true).open(self.folder.join(name))
                });
                let opened = open
                    .find(|file| !matches!(file, Err(error) if error.kind() == io::ErrorKind::AlreadyExists));
                none.insert(opened.expect("the numbers do not end")?)
            }
        };
        let mut line = serde_json::to_string(&(life, past)).map_err(io::Error::other)?;
        line.push('\n');
        file.write_all(line.as_bytes())
    }
}

/// A line of a log.
pub type Line = (u32, Past);

/// All logs of a run: by place, one list for each actor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logs(pub BTreeMap<Place, Vec<Vec<Line>>>);

impl Logs {
    /// Reads a folder.
    ///
    /// # Errors
    /// It cannot be read, or its contents are not logs of ours.
    pub fn read(folder: &Path) -> anyhow::Result<Logs> {
        let mut logs = Logs::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(place) = location_of(&path) else { continue };
            let text = std::fs::read_to_string(&path)?;
            let mut lines = Vec::new();
            for line in text.split_inclusive('\n') {
                // A process that was killed while it wrote has not got the item.
                if line.ends_with('\n') {
                    lines.push(serde_json::from_str(line)?);
                }
            }
            logs.0.entry(place).or_default().push(lines);
        }
        Ok(logs)
    }

    /// Returns all items that one place got.
    pub fn bag(&self, place: Place) -> Bag {
        let mut bag = Bag::new();
        for (_, past) in self.lines(place) {
            *bag.entry(past.clone()).or_default() += 1;
        }
        bag
    }

    /// Returns the lines of a place.
    pub fn lines(&self, place: Place) -> impl Iterator<Item = &Line> {
        self.0.get(&place).into_iter().flatten().flatten()
    }

    /// Returns the number of all lines.
    pub fn count(&self) -> u64 {
        self.0.values().flatten().map(|lines| lines.len() as u64).sum()
    }
}

fn location_of(path: &Path) -> Option<Place> {
    let name = path.file_name()?.to_str()?.strip_suffix(".log")?;
    let (place, _) = name.split_once('-')?;
    let (op, dead) = place.strip_suffix('d').map_or((place, false), |op| (op, true));
    Some(Place { op: op.parse().ok()?, dead })
}

/// Returns the number of lines in the logs of a place by now.
pub fn lines_so_far(folder: &Path, place: Place) -> usize {
    let logs = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let logs = logs.map(|entry| entry.path()).filter(|path| location_of(path) == Some(place));
    logs.filter_map(|path| std::fs::read(path).ok())
        .map(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
        .sum()
}

/// Returns the number of bytes in all logs by now, which is the measure of progress.
pub fn bytes_so_far(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|about| about.len()).sum()
}
