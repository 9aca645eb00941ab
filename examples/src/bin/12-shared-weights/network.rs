//! The network, in candle and on its CPU backend: four lengths, sixteen hidden units, three species. Its
//! weights are sent; they are on the actors' device.

use anyhow::Result;
use candle_core::{D, DType as CandleType, Device as CandleDevice, Tensor as CandleTensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss, ops};
use tensorpost::prelude::*;

use crate::iris::{FEATURES, Flowers, SPECIES};

const HIDDEN: usize = 16;
const CPU: CandleDevice = CandleDevice::Cpu;

/// A version: each layer's weights and bias after one step of the training.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Weights {
    pub(crate) step: u64,
    #[tensor(dtype = f32)]
    pub(crate) layers: [Tensor; 4],
}

const SHAPES: [&[usize]; 4] = [&[FEATURES, HIDDEN], &[HIDDEN], &[HIDDEN, SPECIES.len()], &[SPECIES.len()]];

/// Weights to compute with.
pub(crate) struct Network([CandleTensor; 4]);

impl Network {
    /// Makes the network of a version, on any device.
    pub(crate) fn of(weights: &Weights, stream: &DeviceStream) -> Result<Self> {
        let layer = |index: usize| stream.to_candle(&weights.layers[index]);
        Ok(Network([layer(0)?, layer(1)?, layer(2)?, layer(3)?]))
    }

    fn scores(&self, lengths: &CandleTensor) -> Result<CandleTensor> {
        let [first, first_bias, second, second_bias] = &self.0;
        let hidden = lengths.matmul(first)?.broadcast_add(first_bias)?.tanh()?;
        Ok(hidden.matmul(second)?.broadcast_add(second_bias)?)
    }

    /// Returns how many of the flowers it classifies correctly.
    pub(crate) fn right(&self, flowers: &Flowers) -> Result<usize> {
        let species = self.scores(&lengths(flowers)?)?.argmax(D::Minus1)?.to_vec1::<u32>()?;
        Ok(species.iter().zip(&flowers.species).filter(|(found, known)| found == known).count())
    }
}

fn lengths(flowers: &Flowers) -> Result<CandleTensor> {
    Ok(CandleTensor::from_slice(&flowers.lengths, (flowers.len(), FEATURES), &CPU)?)
}

/// A network that learns.
pub(crate) struct Training {
    layers: [Var; 4],
    optimizer: AdamW,
    lengths: CandleTensor,
    species: CandleTensor,
    steps: u64,
}

impl Training {
    pub(crate) fn new(flowers: &Flowers) -> Result<Self> {
        // The numbers are small, different, and the same in every run.
        let layer = |shape: &[usize]| -> Result<Var> {
            let count: usize = shape.iter().product();
            let start: Vec<f32> = (0..count).map(|at| 0.3 * (7.0 * at as f32 + 1.0).sin()).collect();
            Ok(Var::from_vec(start, shape, &CPU)?)
        };
        let layers = [layer(SHAPES[0])?, layer(SHAPES[1])?, layer(SHAPES[2])?, layer(SHAPES[3])?];
        let settings = ParamsAdamW { lr: 0.02, ..ParamsAdamW::default() };
        Ok(Training {
            optimizer: AdamW::new(layers.to_vec(), settings)?,
            lengths: lengths(flowers)?,
            species: CandleTensor::from_slice(&flowers.species, flowers.len(), &CPU)?,
            layers,
            steps: 0,
        })
    }

    /// Makes one step over all flowers, and returns the loss before it.
    pub(crate) fn step(&mut self) -> Result<f32> {
        let network = Network(self.layers.each_ref().map(|layer| layer.as_tensor().clone()));
        let scores = ops::log_softmax(&network.scores(&self.lengths)?, D::Minus1)?;
        let loss = loss::nll(&scores, &self.species)?;
        self.optimizer.backward_step(&loss)?;
        self.steps += 1;
        Ok(loss.to_dtype(CandleType::F32)?.to_scalar::<f32>()?)
    }

    /// Returns the current weights, in memory of `stream`'s device.
    pub(crate) fn weights(&self, stream: &DeviceStream) -> Result<Weights> {
        let layer = |index: usize| Ok::<_, TensorError>(stream.from_candle(&self.layers[index])?.freeze());
        Ok(Weights { step: self.steps, layers: [layer(0)?, layer(1)?, layer(2)?, layer(3)?] })
    }
}
