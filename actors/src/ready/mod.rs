//! Ready-made sources, stages and sinks for pipelines.
//!
//! They work on any item around one tensor: [`Named`], or a type of yours that you tell how to take apart
//! ([`Carrier`], which [`carrier!`] writes). Each works on the device of its stage (`.on(device)`). Where
//! only one stage follows another, it writes into the memory that it is handed.
//!
//! | | | |
//! |---|---|---|
//! | from files | [`Images`] | photographs of a folder or a pattern, over and over |
//! | images | [`Resize`], [`Normalise`], [`Convolve`], [`Edges`] | |
//! | any tensor | [`map_host`], [`MapKernel`] | code of yours, on the host or as a CUDA kernel |
//! | | [`Product`] | a matrix product |
//! | | [`Measure`] | statistics, read where they are needed |
//! | several at once | [`Batcher`], [`Unbatch`] | tensors of equal shape gathered into one, and taken apart |
//! | in between | [`Tee`], [`Throttle`] | a look at passing items; a limit on the rate |
//! | to files | [`SavePng`], [`SaveRaw`], [`SaveSafetensors`] | |
//! | to bytes | [`encode_png`] | the file of `SavePng` in memory, for an answer over HTTP |
//! | a pool of workers | [`TaskPool`] | tasks in, results out, both bounded; no pipeline |
//!
//! ```standalone_crate
//! use tensorpost::prelude::*;
//! use tensorpost_actors::image::ImageSize;
//! use tensorpost_actors::ready::{Edges, Images, ImagesArgs, Named, Resize, ResizeArgs, SavePng, SavePngArgs};
//!
//! fn main() -> anyhow::Result<()> {
//!     # let (photographs, edges) = (concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data"), std::env::temp_dir());
//!     # let edges = edges.join(format!("tensorpost-ready-{}", std::process::id()));
//!     let report = Pipeline::new("edges")
//!         .source::<Images>(ImagesArgs::folder(photographs))
//!         .stage::<Resize<Named>>(ResizeArgs::bytes(ImageSize::new(96, 64)?))
//!         .stage::<Edges<Named>>(())
//!         .sink::<SavePng<Named>>(SavePngArgs { folder: edges.clone(), gain: 0.25 })
//!         .run()?;
//!     println!("{report}");
//!     # assert!(edges.join("00001-chelsea.png").exists());
//!     # std::fs::remove_dir_all(edges)?;
//!     Ok(())
//! }
//! ```

mod batch;
mod convolve;
mod edges;
mod images;
mod item;
mod map_host;
#[cfg(feature = "cuda")]
mod map_kernel;
mod measure;
mod normalise;
mod product;
mod resize;
mod save;
mod tasks;
mod tee;
mod throttle;
mod unbatch;

pub use crate::carrier;
pub use batch::{Batcher, BatcherArgs};
pub use convolve::Convolve;
pub use edges::Edges;
pub use images::{Images, ImagesArgs, Repeat};
pub use item::{Carrier, Label, Labels, Named, Stack};
pub use map_host::map_host;
#[cfg(feature = "cuda")]
pub use map_kernel::{Code, Grid, MapKernel, MapKernelArgs};
pub use measure::{Measure, Summary};
pub use normalise::Normalise;
pub use product::{Product, ProductArgs};
pub use resize::{Resize, ResizeArgs};
pub use save::{SavePng, SavePngArgs, SaveRaw, SaveSafetensors, SaveSafetensorsArgs, encode_png, file_name};
pub use tasks::{
    Assign, Job, Map, TaskError, TaskOutcome, TaskPool, TaskPoolError, TaskPoolSettings, Worker,
};
pub use tee::{Tee, TeeArgs};
pub use throttle::{Throttle, ThrottleArgs};
pub use unbatch::Unbatch;
