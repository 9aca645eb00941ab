//! Each form that `#[actor]` reads becomes the impls that one would write by hand.

#![deny(warnings)]

use std::marker::PhantomData;

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Found(u64);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Scene)]
struct Look;

#[derive(Clone, Default, Serialize, Deserialize)]
struct Scene(u64);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Scene, String>)]
struct Later;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<u64>)]
struct Last;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Tick;

#[derive(Serialize, Deserialize, GpuMessage)]
struct ByHand;

#[derive(Serialize, Deserialize, GpuMessage)]
struct AlsoByHand<T>(T);

fn is_actor<A: RemoteActor<Args = Args>, Args>() {}
fn has_result<A: Handler<M, Result = R>, M: GpuMessage + actix::Message, R>()
where
    R: tensorpost::__private::actix::dev::MessageResponse<A, M>,
{
}

use tensorpost::__private::actix;

#[derive(Default)]
struct Tracker {
    scene: Scene,
    seen: bool,
}

#[actor]
impl Tracker {
    #[handler]
    fn found(&mut self, Found(more): Found, ctx: &mut Context<Self>) {
        self.scene.0 += more;
        if self.is_full() {
            ctx.stop();
        }
    }

    #[handler]
    fn look(&self, _: Look) -> Scene {
        self.scene.clone()
    }

    #[handler]
    fn last(&mut self, _: Last) -> Option<u64> {
        Some(self.scene.0)
    }

    #[handler]
    fn later(&mut self, _: Later) -> ResponseFuture<Result<Scene, String>> {
        let scene = self.scene.clone();
        Box::pin(async move { Ok(scene) })
    }

    #[handler(acknowledged)]
    fn tick(&mut self, _: Tick) -> ResponseActFuture<Self, ()> {
        Box::pin(async {}.into_actor(self))
    }

    /// Is it on?
    #[handler(message = IsOn)]
    fn is_on(&self) -> bool {
        self.seen
    }

    #[handler(message = Slowly)]
    fn slowly(&self, _: &mut Context<Self>) -> ResponseFuture<Scene> {
        Box::pin(std::future::ready(self.scene.clone()))
    }

    fn is_full(&self) -> bool {
        self.scene.0 > 100
    }
}

/// With hand-written handlers beside the marked ones, arguments, and all the hooks.
struct Mixed<T>(PhantomData<T>);

#[actor(handles(ByHand, AlsoByHand<T>))]
impl<T> Mixed<T>
where
    T: Serialize + serde::de::DeserializeOwned + Send + Unpin + 'static,
{
    fn create(_: Vec<T>, env: &Env) -> anyhow::Result<Self> {
        anyhow::ensure!(!env.is_stopping());
        Ok(Mixed(PhantomData))
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        Ok(())
    }

    #[handler]
    fn handle(&mut self, _: Tick) {}

    fn handles(on: &mut Handles<Self>) {
        on.waits();
    }

    fn dead_letter(&mut self, letter: DeadLetter) {
        println!("{}", letter.name());
    }

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.stop();
    }

    fn stopping(&mut self) -> actix::Running {
        actix::Running::Stop
    }

    fn stopped(&mut self) {}
}

impl<T> Handler<ByHand> for Mixed<T>
where
    T: Serialize + serde::de::DeserializeOwned + Send + Unpin + 'static,
{
    type Result = ();

    fn handle(&mut self, _: ByHand, _: &mut Context<Self>) {}
}

impl<T> Handler<AlsoByHand<T>> for Mixed<T>
where
    T: Serialize + serde::de::DeserializeOwned + Send + Unpin + 'static,
{
    type Result = ();

    fn handle(&mut self, message: AlsoByHand<T>, _: &mut Context<Self>) {
        drop(message.0);
    }
}

/// An actor without any handler of its own, and with another name for the crate.
mod renamed {
    pub(super) use tensorpost as post;
}

#[derive(Default)]
struct Nothing;

#[tensorpost::actor(handles(), crate = crate::accepted::actor_forms::renamed::post)]
impl Nothing {}

#[test]
fn all_of_it_is_accepted() {
    is_actor::<Tracker, ()>();
    is_actor::<Mixed<u8>, Vec<u8>>();
    is_actor::<Nothing, ()>();
    has_result::<Tracker, Found, MessageResult<Found>>();
    has_result::<Tracker, Look, MessageResult<Look>>();
    has_result::<Tracker, Last, MessageResult<Last>>();
    has_result::<Tracker, Later, ResponseFuture<Result<Scene, String>>>();
    has_result::<Tracker, IsOn, MessageResult<IsOn>>();
    has_result::<Tracker, Slowly, ResponseFuture<Scene>>();
    let _: (Option<bool>, Option<Scene>) =
        (None::<<IsOn as GpuMessage>::Reply>, None::<<Slowly as GpuMessage>::Reply>);
    has_result::<Tracker, Tick, ResponseActFuture<Tracker, ()>>();

    // The block's methods can be called under their own names.
    let tracker = Tracker { scene: Scene(3), seen: false };
    assert!(!tracker.seen && tracker.look(Look).0 == 3);
}
