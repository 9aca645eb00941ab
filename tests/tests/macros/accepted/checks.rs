//! Every form of `#[tensor(..)]`, and the containers into which a check looks.

use std::collections::{HashMap, VecDeque};

use tensorpost::prelude::*;

const CHANNELS: usize = 3;

struct Model;

impl Model {
    const WIDTH: usize = 640;
}

const fn half(size: usize) -> usize {
    size / 2
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Everything {
    #[tensor(dtype = bool)]
    a: Option<Tensor>,
    #[tensor(dtype = u8)]
    b: Vec<Tensor>,
    #[tensor(shape = [CHANNELS, Model::WIDTH, half(Model::WIDTH), 2 * CHANNELS])]
    c: Option<Box<Tensor>>,
    #[tensor(device = host)]
    d: HashMap<String, Tensor>,
    #[tensor(dtype = f64, shape = [], device = cuda)]
    e: VecDeque<Tensor>,
    #[tensor(shape = [_, _])]
    f: [Option<Tensor>; 2],
    /// The highest rank there is.
    #[tensor(shape = [1, 1, 1, 1, 1, 1, 1, 1,])]
    g: Option<Tensor>,
    #[tensor(dtype = f16)]
    h: Option<(Tensor, Tensor)>,
    #[deprecated]
    #[tensor(dtype = i8)]
    i: Option<Tensor>,
}

// The derive counts dimensions itself; both have to mean the same limit.
const _: () = assert!(tensorpost::tensor::MAX_RANK == 8);

#[allow(deprecated)]
#[test]
fn all_of_it_is_accepted() {
    let nothing = Everything {
        a: None,
        b: Vec::new(),
        c: None,
        d: HashMap::new(),
        e: VecDeque::new(),
        f: [None, None],
        g: None,
        h: None,
        i: None,
    };
    nothing.check().unwrap();
}
