//! Round trips: a tensor goes to an actor in another process and comes back, or a new one made from it does.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tensorpost::prelude::*;
use tokio::sync::oneshot;

use crate::kernels::Kernels;
use crate::outcome::{Outcome, Text, post};

/// The tensor on its way.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Ball {
    tensor: Tensor,
    kernels: bool,
}

/// Names the receiver of returned balls.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<()>)]
pub(crate) struct Meet {
    pub(crate) partner: Address<Ball>,
}

/// Plays `rounds` rounds after `warmup` more; the reply is the time of each in microseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<Vec<f64>>)]
pub(crate) struct Play {
    pub(crate) elements: usize,
    pub(crate) rounds: usize,
    pub(crate) warmup: usize,
    /// Whether each round makes a fresh tensor with a kernel, and the partner another from it.
    pub(crate) kernels: bool,
    /// Whether the host polls for the end of a round, as the floor's does, and does not nap meanwhile.
    pub(crate) watched: bool,
}

/// One side of the table.
pub(crate) struct Player {
    stream: DeviceStream,
    kernels: Kernels,
    partner: Option<Address<Ball>>,
    game: Option<Game>,
}

struct Game {
    play: Play,
    /// The tensor of every round, where no kernel makes it.
    made: Option<Tensor>,
    served: Instant,
    times: Vec<f64>,
    round: usize,
    done: oneshot::Sender<Outcome<Vec<f64>>>,
}

impl Actor for Player {
    type Context = Context<Self>;
}

impl RemoteActor for Player {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        Ok(Player { kernels: Kernels::load(&stream)?, stream, partner: None, game: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Ball>().message::<Meet>().message::<Play>();
    }
}

impl Handler<Meet> for Player {
    type Result = Outcome<()>;

    fn handle(&mut self, meet: Meet, _: &mut Context<Self>) -> Self::Result {
        self.partner = Some(meet.partner);
        Ok(())
    }
}

impl Handler<Play> for Player {
    type Result = ResponseFuture<Outcome<Vec<f64>>>;

    fn handle(&mut self, play: Play, ctx: &mut Context<Self>) -> Self::Result {
        let (done, result) = oneshot::channel();
        if let Err(error) = self.start(play, done, ctx) {
            return std::future::ready(Err(format!("{error:#}"))).boxed_local();
        }
        async { result.await.unwrap_or_else(|_| Err("the game was given up".to_owned())) }.boxed_local()
    }
}

impl Handler<Ball> for Player {
    type Result = ();

    fn handle(&mut self, ball: Ball, ctx: &mut Context<Self>) {
        let result = if self.game.is_some() { self.caught(ball, ctx) } else { self.bounce(ball, ctx) };
        if let Err(error) = result {
            match self.game.take() {
                Some(game) => drop(game.done.send(Err(format!("{error:#}")))),
                None => eprintln!("a ball was lost: {error:#}"),
            }
        }
    }
}

impl Player {
    fn start(
        &mut self,
        play: Play,
        done: oneshot::Sender<Outcome<Vec<f64>>>,
        ctx: &mut Context<Self>,
    ) -> anyhow::Result<()> {
        let mut made = None;
        if !play.kernels {
            let mut tensor = self.stream.empty(DType::F32, &[play.elements])?;
            self.kernels.fill(&self.stream, &mut tensor, 0.0, Duration::ZERO)?;
            let tensor = tensor.freeze();
            tensor.wait(None)?; // it was written before
            made = Some(tensor);
        }
        let times = Vec::with_capacity(play.rounds);
        self.game = Some(Game { play, made, served: Instant::now(), times, round: 0, done });
        self.serve(ctx)
    }

    fn serve(&mut self, ctx: &mut Context<Self>) -> anyhow::Result<()> {
        let game = self.game.as_mut().text("no game")?;
        let partner = self.partner.as_ref().text("nobody to play with")?;
        game.served = Instant::now();
        let tensor = match &game.made {
            Some(tensor) => tensor.clone(),
            None => {
                let mut tensor = self.stream.empty(DType::F32, &[game.play.elements])?;
                self.kernels.fill(&self.stream, &mut tensor, game.round as f32, Duration::ZERO)?;
                tensor.freeze()
            }
        };
        post(partner, Ball { tensor, kernels: game.play.kernels }, ctx);
        Ok(())
    }

    fn bounce(&mut self, ball: Ball, ctx: &mut Context<Self>) -> anyhow::Result<()> {
        let partner = self.partner.as_ref().text("nobody to play with")?;
        let tensor = if ball.kernels {
            let mut out = self.stream.empty(DType::F32, ball.tensor.shape())?;
            self.kernels.bump(&self.stream, &ball.tensor, &mut out, Duration::ZERO)?;
            out.freeze()
        } else {
            ball.tensor
        };
        post(partner, Ball { tensor, kernels: ball.kernels }, ctx);
        Ok(())
    }

    fn caught(&mut self, ball: Ball, ctx: &mut Context<Self>) -> anyhow::Result<()> {
        // A round trip ends when this host sees that the result is there.
        let game = self.game.as_mut().text("no game")?;
        if game.play.watched {
            // A deadline that has passed makes it a single look.
            while let Err(error) = ball.tensor.wait(Some(game.served)) {
                anyhow::ensure!(matches!(error, TensorError::TimedOut), error);
                std::hint::spin_loop();
            }
        }
        ball.tensor.wait(None)?;
        if game.round >= game.play.warmup {
            game.times.push(game.served.elapsed().as_secs_f64() * 1e6);
        }
        game.round += 1;
        if game.round < game.play.rounds + game.play.warmup {
            return self.serve(ctx);
        }
        let wanted = if game.play.kernels { game.round as f32 } else { 0.0 };
        let some = ball.tensor.slice(0, 0..game.play.elements.min(1024))?;
        let found = self.stream.download::<f32>(&some)?;
        anyhow::ensure!(
            found.iter().all(|value| *value == wanted),
            "the last ball holds {found:?}, not {wanted}"
        );
        let times = std::mem::take(&mut game.times);
        if let Some(game) = self.game.take() {
            // The asker may have given up.
            let _ = game.done.send(Ok(times));
        }
        Ok(())
    }
}
