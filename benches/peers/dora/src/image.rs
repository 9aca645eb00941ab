//! The messages between two stages: an image's values, and beside them its label.

use anyhow::{Context as _, anyhow};
use dora_node_api::dora_core::config::DataId;
use dora_node_api::{DoraArray, DoraNode, Metadata, Parameter, get_integer_param};
use tensorpost_peer_stages::ImageSize;

/// The output of each stage, and the input of the next.
pub(crate) const IMAGES: &str = "images";

/// The number of the image.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    pub(crate) id: u64,
    /// The size of the photograph.
    pub(crate) size: ImageSize,
}

impl Label {
    fn read(metadata: &Metadata) -> anyhow::Result<Self> {
        let number = |name: &str| {
            get_integer_param(&metadata.parameters, name).with_context(|| format!("an image has no {name}"))
        };
        let size = ImageSize::new(number("width")?.try_into()?, number("height")?.try_into()?)?;
        Ok(Label { id: number("id")?.try_into()?, size })
    }
}

/// A received image.
pub(crate) struct Image {
    pub(crate) label: Label,
    data: DoraArray,
}

impl Image {
    pub(crate) fn new(metadata: &Metadata, data: DoraArray) -> anyhow::Result<Self> {
        Ok(Image { label: Label::read(metadata)?, data })
    }

    pub(crate) fn bytes(&self) -> anyhow::Result<&[u8]> {
        (&self.data).try_into().map_err(|error| anyhow!("an image is no bytes: {error}"))
    }

    pub(crate) fn floats(&self) -> anyhow::Result<&[f32]> {
        bytemuck::try_cast_slice(self.bytes()?).map_err(|error| anyhow!("an image is no floats: {error}"))
    }
}

/// Sends the bytes that `fill` writes into dora's memory. They are sent even where it fails; then this stage
/// must end.
pub(crate) fn send(
    node: &mut DoraNode,
    label: Label,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let numbers = [
        ("id", label.id.try_into()?),
        ("width", label.size.width().into()),
        ("height", label.size.height().into()),
    ];
    let parameters = numbers.map(|(name, number)| (name.to_owned(), Parameter::Integer(number)));
    let mut filled = Ok(());
    node.send_output_raw(DataId::from(IMAGES.to_owned()), parameters.into(), len, |data| {
        filled = fill(data);
    })?;
    filled
}

/// As [`send`], with floats.
pub(crate) fn send_floats(
    node: &mut DoraNode,
    label: Label,
    len: usize,
    fill: impl FnOnce(&mut [f32]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    send(node, label, len * size_of::<f32>(), |data| {
        fill(
            bytemuck::try_cast_slice_mut(data)
                .map_err(|error| anyhow!("dora's memory is for no floats: {error}"))?,
        )
    })
}
