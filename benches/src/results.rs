//! Criterion's measurements, read back from its files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The results of the last run in one folder.
#[derive(Clone, Debug)]
pub struct Results(PathBuf);

impl Results {
    /// Reads those under `folder`, which criterion calls its home.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Results(folder.into())
    }

    /// Reads those in the folder of `cargo bench`: `CRITERION_HOME`, or `criterion` in the target folder.
    pub fn of_last_run() -> Self {
        let target = || {
            std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
        };
        Results(std::env::var_os("CRITERION_HOME").map_or_else(|| target().join("criterion"), PathBuf::from))
    }

    /// Returns the median time of one iteration, in nanoseconds, or `None` where it was not measured.
    pub fn median(&self, bench: &str) -> Option<f64> {
        self.json(&format!("{bench}/new/estimates.json"))?.pointer("/median/point_estimate")?.as_f64()
    }

    /// Returns the least time of one iteration among the samples, in nanoseconds: its time when no other
    /// process wants the cores, provided that some sample was so lucky.
    pub fn best(&self, bench: &str) -> Option<f64> {
        let samples = self.json(&format!("{bench}/new/sample.json"))?;
        let list = |name: &str| -> Option<Vec<f64>> {
            samples.get(name)?.as_array()?.iter().map(Value::as_f64).collect()
        };
        let (iterations, times) = (list("iters")?, list("times")?);
        times.iter().zip(&iterations).map(|(time, count)| time / count).min_by(f64::total_cmp)
    }

    /// Reads a file that a bench wrote itself.
    pub fn json(&self, file: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.0.join(file)).ok()?).ok()
    }

    /// Writes such a file.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn write(&self, file: &str, value: &Value) -> std::io::Result<()> {
        fs::create_dir_all(&self.0)?;
        fs::write(self.0.join(file), value.to_string())
    }
}
