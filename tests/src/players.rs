//! Workers that pass tensors around for ever and copy them on the device each time, so that a test can kill a
//! node in the middle of traffic.

use actix::fut::wrap_future;
use tensorpost::prelude::*;

/// Hops between two reports of a ball.
const NEWS_EVERY: u64 = 50;
/// Balls that each player begins with.
const BALLS: usize = 4;

/// A tensor that the workers pass on.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Ball {
    hops: u64,
    pixels: Tensor,
    reports: Address<Report>,
}

/// "This many hops." A player reports it now and then.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Report(u64);

/// "Play to this one from now on, with balls of your own of this many elements." The reply is the player's
/// process.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Play {
    next: Address<Ball>,
    reports: Address<Report>,
    elements: usize,
}

struct Player {
    stream: DeviceStream,
    next: Option<Address<Ball>>,
}

impl Actor for Player {
    type Context = Context<Self>;
}

impl RemoteActor for Player {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Player { stream: env.stream(), next: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Ball>().message::<Play>();
    }
}

impl Player {
    fn pass(&self, ball: Ball, ctx: &mut Context<Self>) {
        let Some(next) = &self.next else { return };
        if ball.hops.is_multiple_of(NEWS_EVERY) {
            let reports = ball.reports.send(Report(ball.hops));
            ctx.spawn(wrap_future(async move { drop(reports.await) }));
        }
        let sending = next.send(ball);
        ctx.spawn(wrap_future(async move { drop(sending.await) }));
    }
}

impl Handler<Play> for Player {
    type Result = u32;

    fn handle(&mut self, play: Play, ctx: &mut Context<Self>) -> u32 {
        self.next = Some(play.next);
        for _ in 0..BALLS {
            let pixels = self.stream.zeros(DType::F32, &[play.elements]).expect("room").freeze();
            self.pass(Ball { hops: 1, pixels, reports: play.reports.clone() }, ctx);
        }
        std::process::id()
    }
}

impl Handler<Ball> for Player {
    type Result = ();

    fn handle(&mut self, ball: Ball, ctx: &mut Context<Self>) {
        let pixels = self.stream.copy(&ball.pixels).expect("room").freeze();
        self.pass(Ball { hops: ball.hops + 1, pixels, reports: ball.reports }, ctx);
    }
}

/// Has this many workers play on a device with balls of this many elements. Prints `pids` with the ids of the
/// node's process and theirs, and then for ever `reports` with the hops of a ball. The players are restarted
/// when they fail.
///
/// # Errors
/// Fails where the node or a worker did not start, or has ended.
pub fn play_for_ever(node: &Node, device: &Device, players: usize, elements: usize) -> anyhow::Result<()> {
    let spawn = || node.spawn::<Player>(()).device(device.clone()).restart(Restart::on_failure(9)).start();
    let players = (0..players).map(|_| spawn()).collect::<Result<Vec<_>, _>>()?;
    let (reports, mut channel) = node.channel::<Report>()?;
    let mut pids = vec![std::process::id().to_string()];
    for (number, player) in players.iter().enumerate() {
        let next = players[(number + 1) % players.len()].address();
        let play = Play { next, reports: reports.clone(), elements };
        pids.push(node.block_on(player.address().ask(play))?.to_string());
    }
    println!("pids {}", pids.join(" "));
    loop {
        println!("hops {}", channel.blocking_recv()?.0);
    }
}
