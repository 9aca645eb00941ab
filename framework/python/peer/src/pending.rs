//! Sends host tensors that are not written yet to an actor of Python: `peer pending INTERPRETER FOLDER`, as
//! the tests run it. Each way to read them waits for the writer, in the node's own process or in another
//! worker (CLOCK-1).
//!
//! Prints a line for each way, and ends with 1 at the first that saw anything else.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::__private::actix::{Actor, Context, Handler, ResponseFuture};
use tensorpost_core::__private::anyhow::{Result, anyhow, bail, ensure};
use tensorpost_core::api::actor::{Address, Ask, Env, Handles, Python, RemoteActor};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::node::Node;
use tensorpost_core::tensor::{DType, DeviceStream, Tensor};

use crate::WAIT_FOR_ANSWER;

/// A look that does not wait has answered by then.
const A_MOMENT: Duration = Duration::from_millis(50);

/// The same message as in Python. The actor says that it begins, and replies with the values.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = Vec<u64>)]
struct Look {
    how: String,
    #[tensor(dtype = u64)]
    values: Tensor,
    begins: Address<Seen>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Seen {
    what: String,
}

/// Asks a writer to have its tensor read in this way. The reply has the values.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, reply = Vec<u64>)]
struct Show {
    how: String,
    begins: Address<Seen>,
}

/// Asks a writer to write its tensor.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, reply = ())]
struct Write;

/// Has a tensor of its own, and writes it when it gets [`Write`].
struct Writer {
    to: Address<Look>,
    tensor: Tensor,
    write: Option<Sender<()>>,
}

impl Actor for Writer {
    type Context = Context<Self>;
}

impl RemoteActor for Writer {
    type Args = Address<Look>;

    fn create(to: Address<Look>, env: &Env) -> Result<Self> {
        let (write, tensor) = pending(&env.stream())?;
        Ok(Writer { to, tensor, write: Some(write) })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Show>();
        on.message::<Write>();
    }
}

impl Handler<Show> for Writer {
    type Result = ResponseFuture<Vec<u64>>;

    fn handle(&mut self, Show { how, begins }: Show, _: &mut Context<Self>) -> Self::Result {
        let seen = self.to.ask(Look { how, values: self.tensor.clone(), begins }).timeout(WAIT_FOR_ANSWER);
        Box::pin(async move { seen.await.unwrap_or_default() })
    }
}

impl Handler<Write> for Writer {
    type Result = ();

    fn handle(&mut self, _: Write, _: &mut Context<Self>) {
        drop(self.write.take());
    }
}

/// Zeros that become sevens when the sender drops.
fn pending(stream: &DeviceStream) -> Result<(Sender<()>, Tensor)> {
    let (write, wait) = channel::<()>();
    let mut tensor = stream.zeros(DType::U64, &[2])?;
    let kernel = move |(all,): (&mut [u64],)| {
        let _ = wait.recv();
        all.fill(7);
    };
    stream.run((tensor.of_mut::<u64>(),), kernel)?;
    Ok((write, tensor.freeze()))
}

/// Returns the values that a look sees which begins before `write`.
fn seen_late<M: GpuMessage<Reply = Vec<u64>>>(
    node: &Node,
    mut look: Ask<M>,
    begun: impl FnOnce() -> Result<()>,
    write: impl Future<Output = Result<()>>,
) -> Result<Vec<u64>> {
    // The link to its process may be new.
    node.block_on(look.accepted()).map_err(|error| anyhow!("{error}"))?;
    begun()?;
    node.block_on(async {
        if let Ok(early) = tokio::time::timeout(A_MOMENT, &mut look).await {
            bail!("it saw {:?} before the data was there", early.ok());
        }
        write.await?;
        look.await.map_err(|error| anyhow!("{error}"))
    })
}

pub(crate) fn run(interpreter: &str, folder: &str) -> Result<()> {
    let node = Node::builder().start()?;
    let stream = node.host_stream()?;
    let looker = Python::actor("actors_of_python:Looker").interpreter(interpreter).path(folder);
    for how in ["numpy", "bytes", "copy", "bytes of a busy process"] {
        let looker = node.spawn::<Python>(looker.clone()).start()?;
        let (begins, mut begun) = node.channel::<Seen>()?;
        let mut begun = || Ok(begun.blocking_recv().map(drop)?);
        let message =
            |values: &Tensor| Look { how: how.to_owned(), values: values.clone(), begins: begins.clone() };

        let (write, values) = pending(&stream)?;
        let asked = looker.ask(message(&values)).timeout(WAIT_FOR_ANSWER);
        let written = async move {
            drop(write);
            Ok(())
        };
        let seen = seen_late(&node, asked, &mut begun, written)?;
        ensure!(seen == [7, 7], "{how}, of the node's own process: {seen:?}");
        let seen = node.block_on(looker.ask(message(&values)).timeout(WAIT_FOR_ANSWER))?;
        begun()?;
        ensure!(seen == [7, 7], "{how}, of what is there: {seen:?}");

        let writer = node.spawn::<Writer>(looker.address()).start()?;
        let show =
            || writer.ask(Show { how: how.to_owned(), begins: begins.clone() }).timeout(WAIT_FOR_ANSWER);
        let written = async { writer.ask(Write).await.map_err(|error| anyhow!("{error}")) };
        let seen = seen_late(&node, show(), &mut begun, written)?;
        ensure!(seen == [7, 7], "{how}, of another worker: {seen:?}");
        let seen = node.block_on(show())?;
        begun()?;
        ensure!(seen == [7, 7], "{how}, of what another worker has written: {seen:?}");
        println!("{how}");
    }
    ensure!(node.shutdown(WAIT_FOR_ANSWER)?.drained, "it is not drained");
    Ok(())
}
