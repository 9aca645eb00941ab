//! Tensors anywhere in a message: in structs, lists, maps, options and enums, with no annotation on the inner
//! types.

use std::collections::BTreeMap;

use tensorpost::prelude::*;

/// The message: the only type that derives `GpuMessage`. Its reply is a list of lines.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<String>)]
struct Scene {
    title: String,
    regions: Vec<Region>,
    layers: BTreeMap<String, Tensor>,
    mask: Mask,
}

#[derive(Serialize, Deserialize)]
struct Region {
    label: String,
    crop: Option<Tensor>,
}

#[derive(Serialize, Deserialize)]
enum Mask {
    Nothing,
    Alpha { values: Box<Tensor>, gain: f32 },
}

#[derive(Default)]
struct Describer;

#[actor]
impl Describer {
    #[handler]
    fn describe(&self, scene: Scene) -> Vec<String> {
        let mut lines = vec![format!("scene `{}`", scene.title)];
        for Region { label, crop } in &scene.regions {
            let crop = crop.as_ref().map_or("no crop".to_owned(), |crop| format!("{crop:?}"));
            lines.push(format!("region `{label}`: {crop}"));
        }
        lines.extend(scene.layers.iter().map(|(name, layer)| format!("layer `{name}`: {layer:?}")));
        lines.push(match &scene.mask {
            Mask::Nothing => "no mask".to_owned(),
            Mask::Alpha { values, gain } => format!("mask: {values:?}, gain {gain}"),
        });
        lines
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let describer = node.spawn::<Describer>(()).start()?;
    let stream = node.host_stream()?;
    let image = stream.zeros(DType::F32, &[3, 4, 6])?.freeze();
    let scene = Scene {
        title: "street".to_owned(),
        regions: vec![
            Region { label: "car".to_owned(), crop: Some(image.slice(2, 1..4)?) },
            Region { label: "sky".to_owned(), crop: None },
        ],
        layers: BTreeMap::from([
            ("blue".to_owned(), image.index(0, 2)?),
            ("red".to_owned(), image.index(0, 0)?),
        ]),
        mask: Mask::Alpha { values: Box::new(stream.zeros(DType::U8, &[4, 6])?.freeze()), gain: 0.5 },
    };
    for line in node.block_on(describer.address().ask(scene))? {
        println!("{line}");
    }
    let bare =
        Scene { title: "fog".to_owned(), regions: vec![], layers: BTreeMap::new(), mask: Mask::Nothing };
    println!("{}", node.block_on(describer.address().ask(bare))?.join("; "));
    Ok(())
}
