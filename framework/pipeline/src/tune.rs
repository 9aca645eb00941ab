//! The settings of a stage that sources, stages and sinks have in common.

use super::flow::{Flow, Tuned};
use super::location::StageLocation;
use super::on_error::OnError;

impl<T, At: Tuned> Flow<T, At> {
    /// Names the stage, for reports, diagrams and its worker. Without this it has the name of its type.
    pub fn named(self, name: impl Into<String>) -> Self {
        self.tune(|stage| stage.name = name.into())
    }

    /// Runs `count` replicas of the stage, each in a worker of its own. Each replica of a source makes all
    /// items.
    pub fn replicas(self, count: u32) -> Self {
        self.tune(|stage| stage.replicas = count)
    }

    /// Sets the device that the stage works on; the host unless said otherwise. With the feature `hosts` it
    /// may be on another host of the node. See [`StageLocation`].
    pub fn on(self, device: impl Into<StageLocation>) -> Self {
        self.tune(|stage| stage.on = device.into())
    }

    /// Puts the stage into the worker of the stage before, which must have one replica. Items go to it as
    /// values, without being encoded, and the two take turns on one thread.
    pub fn beside(self) -> Self {
        let before = {
            let plan = &self.draft.borrow().plan;
            plan.edges_to(self.stage).next().map(|(_, edge)| edge.from.stage)
        };
        self.tune(|stage| stage.beside = before)
    }

    /// Gives the stage a thread of its own in its worker, which reads messages on another thread meanwhile.
    /// This is for calls that take long, next to other stages in one worker.
    pub fn own_thread(self) -> Self {
        self.tune(|stage| stage.own_thread = true)
    }

    /// Sets how many streams the stage has on a GPU, from 1 to 30. The default is 1, the stream of its `Env`.
    /// Set more if the stage makes streams with `DeviceStream::with_new_stream`. Each makes the start of its
    /// worker longer.
    pub fn streams(self, count: usize) -> Self {
        self.tune(|stage| stage.streams = count)
    }

    /// Keeps `count` spare processes for each replica, which have started and opened its device, so that
    /// after a death the replica goes on in one of them at once: see
    /// [`Spawn::spares`](tensorpost_core::api::node::Spawn::spares). It needs a policy for
    /// [restarts](Self::restart). Stages in one worker share their spares.
    pub fn spares(self, count: u32) -> Self {
        self.tune(|stage| stage.spares = count)
    }

    /// Sets what happens when the stage fails on an item; unless said otherwise the pipeline fails.
    pub fn on_error(self, on_error: OnError) -> Self {
        self.tune(|stage| stage.on_error = on_error)
    }
}
