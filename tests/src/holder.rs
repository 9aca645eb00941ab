//! An actor that follows a test's orders: it holds tensors, waits at a door, ends.

use actix::AsyncContext;
use tensorpost::actor::ActorId;
use tensorpost::prelude::*;

use crate::gate::Door;

/// See the module.
#[derive(Debug)]
pub struct Holder {
    stream: DeviceStream,
    me: ActorId,
    seen: Vec<u64>,
    held: Vec<Tensor>,
}

/// "Keep these." Passes the door first, if there is one. The reply is how many tensors are held now.
#[derive(Debug, Default, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
pub struct Hold {
    /// The label that [`Seen`] reports.
    pub label: u64,
    /// The tensors to keep.
    pub tensors: Vec<Tensor>,
    /// Where the handler waits first.
    pub door: Option<Door>,
}

impl Hold {
    /// Makes one without tensors.
    pub fn label(label: u64) -> Self {
        Hold { label, ..Hold::default() }
    }

    /// Makes one whose handler waits.
    pub fn at(label: u64, door: &Door) -> Self {
        Hold { label, door: Some(door.clone()), ..Hold::default() }
    }

    /// Makes one with a tensor.
    pub fn with(label: u64, tensor: Tensor) -> Self {
        Hold { label, tensors: vec![tensor], door: None }
    }
}

/// "Let everything go, and forget it." The reply is the labels of all [`Hold`]s since the last one, in order.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
pub struct LetGo;

/// "What have you seen?" The reply is the labels of all [`Hold`]s since the last [`LetGo`], in order.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
pub struct Seen;

/// "Make a tensor of these elements." The tensor is in the holder's memory.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
pub struct Make {
    /// The elements.
    pub elements: Vec<u32>,
    /// Where the handler waits first.
    pub door: Option<Door>,
}

/// "What is in this?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u32>)]
pub struct Read(#[tensor(dtype = u32)] pub Tensor);

/// "End."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct End {
    /// The way to end.
    pub how: How,
    /// Where the handler waits first.
    pub door: Option<Door>,
}

/// A way to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// `ctx.stop()`.
    Stop,
    /// `ctx.terminate()`.
    Terminate,
    /// A panic in the handler.
    Panic,
    /// A panic in a future that the handler left behind.
    PanicLater,
    /// The process exits.
    Exit,
}

/// "How are you?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Health)]
pub struct Check;

/// The state of a holder and its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The process.
    pub pid: u32,
    /// The actor.
    pub actor: ActorId,
    /// The thread that its handlers run on.
    pub thread: String,
    /// Allocations of the process's pool that are still held.
    pub allocations: usize,
    /// Bytes of the process's pool.
    pub chunk_bytes: u64,
}

impl Actor for Holder {
    type Context = Context<Self>;
}

impl RemoteActor for Holder {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Holder { stream: env.stream(), me: env.actor(), seen: Vec::new(), held: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Hold>().message::<LetGo>().message::<Seen>();
        on.message::<Make>().message::<Read>().message::<End>().message::<Check>();
    }
}

fn pass(door: &Option<Door>) {
    if let Some(door) = door {
        door.pass().expect("the gate is there");
    }
}

impl Handler<Hold> for Holder {
    type Result = MessageResult<Hold>;

    fn handle(&mut self, hold: Hold, _: &mut Context<Self>) -> Self::Result {
        pass(&hold.door);
        self.seen.push(hold.label);
        self.held.extend(hold.tensors);
        MessageResult(self.held.len())
    }
}

impl Handler<LetGo> for Holder {
    type Result = MessageResult<LetGo>;

    fn handle(&mut self, _: LetGo, _: &mut Context<Self>) -> Self::Result {
        self.held.clear();
        MessageResult(std::mem::take(&mut self.seen))
    }
}

impl Handler<Seen> for Holder {
    type Result = MessageResult<Seen>;

    fn handle(&mut self, _: Seen, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.seen.clone())
    }
}

impl Handler<Make> for Holder {
    type Result = MessageResult<Make>;

    fn handle(&mut self, make: Make, _: &mut Context<Self>) -> Self::Result {
        pass(&make.door);
        let tensor = self.stream.from_slice(&[make.elements.len()], &make.elements);
        MessageResult(tensor.expect("room for the elements").freeze())
    }
}

impl Handler<Read> for Holder {
    type Result = MessageResult<Read>;

    fn handle(&mut self, Read(tensor): Read, _: &mut Context<Self>) -> Self::Result {
        MessageResult(tensor.to_vec::<u32>().expect("it is on the host"))
    }
}

impl Handler<End> for Holder {
    type Result = ();

    fn handle(&mut self, end: End, ctx: &mut Context<Self>) {
        pass(&end.door);
        match end.how {
            How::Stop => ctx.stop(),
            How::Terminate => ctx.terminate(),
            How::Panic => panic!("it was told to panic"),
            How::PanicLater => {
                ctx.spawn(actix::fut::wrap_future(async { panic!("it was told to panic later") }));
            }
            How::Exit => std::process::exit(3),
        }
    }
}

impl Handler<Check> for Holder {
    type Result = MessageResult<Check>;

    fn handle(&mut self, _: Check, _: &mut Context<Self>) -> Self::Result {
        let stats = self.stream.pool().stats();
        MessageResult(Health {
            pid: std::process::id(),
            actor: self.me,
            thread: format!("{:?}", std::thread::current().id()),
            allocations: stats.allocations,
            chunk_bytes: stats.chunk_bytes,
        })
    }
}
