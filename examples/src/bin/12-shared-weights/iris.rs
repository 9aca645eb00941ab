//! The data: 150 irises of three species, four lengths of each (`data/CREDITS.md` names the source).

use anyhow::{Context as _, Result, bail};

/// Lengths per flower.
pub(crate) const FEATURES: usize = 4;
/// Species.
pub(crate) const SPECIES: [&str; 3] = ["Iris-setosa", "Iris-versicolor", "Iris-virginica"];

const FILE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/iris/iris.data"));

/// Flowers, each with its lengths and its species.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flowers {
    /// [`FEATURES`] lengths per flower, normalised with the flowers to learn from: mean 0, standard deviation
    /// 1.
    pub(crate) lengths: Vec<f32>,
    /// Indices into [`SPECIES`].
    pub(crate) species: Vec<u32>,
}

/// Returns the flowers to learn from, and every fifth one to test with.
pub(crate) fn flowers() -> Result<(Flowers, Flowers)> {
    let (mut learn, mut test) = (Flowers::default(), Flowers::default());
    for (index, line) in FILE.lines().filter(|line| !line.is_empty()).enumerate() {
        let flowers = if index % 5 == 4 { &mut test } else { &mut learn };
        flowers.push(line).with_context(|| format!("line {} of the irises", index + 1))?;
    }
    let scale: [(f32, f32); FEATURES] = std::array::from_fn(|feature| learn.scale(feature));
    learn.rescale(&scale);
    test.rescale(&scale);
    Ok((learn, test))
}

impl Flowers {
    pub(crate) fn len(&self) -> usize {
        self.species.len()
    }

    fn push(&mut self, line: &str) -> Result<()> {
        let mut fields = line.split(',');
        for _ in 0..FEATURES {
            self.lengths.push(fields.next().context("a length is missing")?.parse()?);
        }
        let species = fields.next().context("the species is missing")?;
        match SPECIES.iter().position(|known| *known == species) {
            Some(index) => self.species.push(index as u32),
            None => bail!("no such species: {species}"),
        }
        Ok(())
    }

    fn column(&self, feature: usize) -> impl Iterator<Item = f32> {
        self.lengths.iter().skip(feature).step_by(FEATURES).copied()
    }

    /// Mean and standard deviation.
    fn scale(&self, feature: usize) -> (f32, f32) {
        let count = self.len() as f32;
        let mean = self.column(feature).sum::<f32>() / count;
        let variance = self.column(feature).map(|length| (length - mean).powi(2)).sum::<f32>() / count;
        (mean, variance.sqrt())
    }

    fn rescale(&mut self, scale: &[(f32, f32); FEATURES]) {
        for (at, length) in self.lengths.iter_mut().enumerate() {
            let (mean, deviation) = scale[at % FEATURES];
            *length = (*length - mean) / deviation;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts are those of the repository that publishes the data.
    #[test]
    fn the_data_is_what_its_source_says() {
        let mut all = Flowers::default();
        FILE.lines().for_each(|line| all.push(line).expect("a flower"));
        assert_eq!(all.len(), 150);
        for species in 0..3 {
            assert_eq!(all.species.iter().filter(|known| **known == species).count(), 50);
        }
        let sums: Vec<String> =
            (0..FEATURES).map(|feature| format!("{:.1}", all.column(feature).sum::<f32>())).collect();
        assert_eq!(sums, ["876.5", "458.1", "563.8", "179.8"]);
        let (learn, test) = flowers().expect("flowers");
        assert_eq!((learn.len(), test.len()), (120, 30));
    }
}
