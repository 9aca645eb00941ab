//! One run of each measurement.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tensorpost::hosts::Nixl;
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost_benches::baseline::MESSAGE;
use tensorpost_benches::notes::{Counter, Driver, Many, Meet, Trips};

use crate::actors::{Came, Never, Pour, Poured, Sink, Source, Stall, Stop};
use crate::bare::{Bare, Kind, PIECE};
use crate::hosts::{Key, Pair};
use crate::on_device::{DeviceSink, DeviceSource};

/// Bytes of a large tensor.
pub(crate) const TENSOR: usize = 64 << 20;
/// The mailbox of a sink of notes.
const MANY: u32 = 1024;
/// The mailbox of a sink of tensors.
const FEW: u32 = 4;

pub(crate) const GIB: f64 = (1_u64 << 30) as f64;

/// The percentiles of the times of single messages, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    fn of(mut nanos: Vec<u64>) -> anyhow::Result<Self> {
        nanos.sort_unstable();
        let at = |share: usize| nanos.get(nanos.len() * share / 100).map(|nanos| *nanos as f64 / 1e3);
        let found = at(50).zip(at(99)).context("nothing was timed")?;
        Ok(Percentiles { p50: found.0, p99: found.1 })
    }
}

/// Returns GiB a second.
fn speed(poured: &Poured, bytes: usize) -> f64 {
    (poured.count as usize * bytes) as f64 / GIB / (poured.nanos as f64 / 1e9)
}

/// Two hosts with a process on each that speak to each other, and one on each for tensors.
pub(crate) struct Two {
    pair: Pair,
    driver: Spawned<Driver>,
    echo: Spawned<Counter>,
    counter: Spawned<Counter>,
    source: Spawned<Source>,
    sink: Spawned<Sink>,
}

impl Two {
    pub(crate) fn start(key: Option<&Key>, lanes: u16) -> anyhow::Result<Self> {
        Self::of(Pair::start(key, lanes)?)
    }

    /// Starts the actors on hosts that exist.
    pub(crate) fn of(pair: Pair) -> anyhow::Result<Self> {
        let two = Two {
            driver: pair.spawn_here(MANY)?,
            echo: pair.spawn_there(MANY)?,
            counter: pair.spawn_there(MANY)?,
            source: pair.spawn_here(MANY)?,
            sink: pair.spawn_there(FEW)?,
            pair,
        };
        let met = two.ask(&two.echo.address(), Meet(two.driver.address(), two.driver.address()))?;
        anyhow::ensure!(met, "there is no way back");
        Ok(two)
    }

    fn ask<M: GpuMessage>(&self, to: &Address<M>, message: M) -> anyhow::Result<M::Reply> {
        self.pair.node.block_on(to.ask(message)).map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Returns half of each round trip of a note.
    pub(crate) fn trips(&self, count: u64) -> anyhow::Result<Percentiles> {
        let trips = |count| self.ask(&self.driver.address(), Trips { to: self.echo.address(), count });
        trips(count / 10)?.map_err(anyhow::Error::msg)?;
        Percentiles::of(trips(count)?.map_err(anyhow::Error::msg)?)
    }

    /// Returns the same while tensors are sent beside them, and GiB a second of those.
    pub(crate) fn trips_beside_bulk(&self, count: u64) -> anyhow::Result<(Percentiles, f64)> {
        let (before, _) = self.ask(&self.sink.address(), Came)?;
        let mut pouring = self.source.ask(self.pour(u64::MAX, TENSOR));
        self.pair.node.block_on(pouring.accepted()).map_err(|error| anyhow::anyhow!("{error}"))?;
        while self.ask(&self.sink.address(), Came)?.0 == before {}
        let trips = self.trips(count)?;
        self.pair.node.block_on(self.source.send(Stop)).map_err(|error| error.reason)?;
        let poured = self.pair.node.block_on(pouring).map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok((trips, speed(&poured.map_err(anyhow::Error::msg)?, TENSOR)))
    }

    /// Returns the notes a second, in one direction.
    pub(crate) fn many(&self, count: u64) -> anyhow::Result<f64> {
        let (to, seen) = (self.counter.address(), self.counter.address());
        let nanos = self.ask(&self.driver.address(), Many { to, seen, count })?;
        Ok(count as f64 * 1e9 / nanos.map_err(anyhow::Error::msg)? as f64)
    }

    fn pour(&self, count: u64, bytes: usize) -> Pour {
        Pour { to: self.sink.address(), came: self.sink.address(), count, bytes }
    }

    fn poured(&self, count: u64, bytes: usize) -> anyhow::Result<Poured> {
        self.ask(&self.source.address(), self.pour(count, bytes))?.map_err(anyhow::Error::msg)
    }

    /// Returns the GiB a second of large tensors.
    pub(crate) fn tensors(&self, count: u64) -> anyhow::Result<f64> {
        self.poured(count, TENSOR).map(|poured| speed(&poured, TENSOR))
    }

    /// Sends tensors to a consumer that stands still for this long. Returns how many have come, in order, and
    /// the seconds that the sender waited.
    pub(crate) fn stalled(&self, count: u64, stall: Duration) -> anyhow::Result<(u64, f64)> {
        self.ask(&self.sink.address(), Stall(stall.as_millis() as u64))?;
        let poured = self.poured(count, 20_000)?;
        Ok((poured.count, poured.longest as f64 / 1e9))
    }

    /// Returns the MiB that all processes of either host have in use, after the first ten thousand messages,
    /// and after all of them: four notes to each tensor.
    pub(crate) fn memory(
        &self,
        count: u64,
        mut progress: impl FnMut(u64, [f64; 2]),
    ) -> anyhow::Result<[[f64; 2]; 2]> {
        const FIRST: u64 = 10_000;
        const STEPS: u64 = 10;
        let mut measured = Vec::new();
        let mut sent = 0;
        for step in 0..=STEPS {
            let more = if step == 0 { FIRST } else { count.saturating_sub(FIRST) / STEPS };
            self.many(more / 5 * 4)?;
            self.poured(more / 5, 4096)?;
            sent += more;
            let resident = self.pair.resident()?.map(|bytes| bytes as f64 / f64::from(1 << 20));
            progress(sent, resident);
            measured.push(resident);
        }
        let first = measured.first().copied().context("nothing was sent")?;
        let last = measured.last().copied().context("nothing was sent")?;
        Ok([0, 1].map(|host| [first[host], last[host]]))
    }

    /// Kills the other host while this many asks with tensors wait for it. Returns the seconds until all are
    /// answered, and the bytes of this host's memory that are held then.
    pub(crate) fn killed(mut self, asks: usize) -> anyhow::Result<(f64, u64)> {
        let never = self.pair.spawn_there::<Sink>(MANY)?;
        let stream = self.pair.node.host_stream()?;
        let mut waiting = Vec::new();
        for _ in 0..asks {
            let data = stream.zeros(DType::U8, &[100_000])?.freeze();
            let mut asked = never.ask(Never { data });
            self.pair.node.block_on(asked.accepted()).map_err(|error| anyhow::anyhow!("{error}"))?;
            waiting.push(asked);
        }
        self.pair.kill_other()?;
        let since = Instant::now();
        for asked in waiting {
            let answer = self.pair.node.block_on(asked);
            anyhow::ensure!(answer.is_err(), "an ask that is never answered was: {answer:?}");
        }
        let seconds = since.elapsed().as_secs_f64();
        let mut held = u64::MAX;
        let until = Instant::now() + Duration::from_secs(1);
        while held > 0 && Instant::now() < until {
            held = self.pair.node.metrics()?.processes.iter().map(|of| of.metrics.bytes_held).sum();
        }
        Ok((seconds, held))
    }

    pub(crate) fn end(self) -> anyhow::Result<()> {
        let Two { pair, driver, echo, counter, source, sink } = self;
        drop((driver, echo, counter, source, sink));
        pair.end()
    }
}

/// Two hosts with a process on each that works on one device.
pub(crate) struct TwoOnDevice {
    pair: Pair,
    /// Actors that write and check bytes of each tensor.
    touching: Ends,
    /// Actors that do not, where there are some.
    others: Option<Ends>,
}

/// An actor on either host.
struct Ends {
    source: Spawned<DeviceSource>,
    sink: Spawned<DeviceSink>,
}

impl TwoOnDevice {
    /// Starts the hosts without TLS, and with this many connections for tensors.
    pub(crate) fn start(device: &Device, lanes: u16) -> anyhow::Result<Self> {
        let pair = Pair::with(None, lanes, Nixl::Off)?;
        let touching = Ends::start(&pair, device, device, true, FEW)?;
        Ok(TwoOnDevice { pair, touching, others: None })
    }

    /// Sends from one device to another, by NIXL where it is faster.
    pub(crate) fn by_nixl(from: &Device, to: &Device, lanes: u16) -> anyhow::Result<Self> {
        let pair = Pair::with(None, lanes, Nixl::WhereFaster)?;
        let ends = |touches| Ends::start(&pair, from, to, touches, 4 * FEW);
        let (touching, others) = (ends(true)?, Some(ends(false)?));
        Ok(TwoOnDevice { pair, touching, others })
    }

    /// Returns the GiB a second of large tensors.
    pub(crate) fn tensors(&self, count: u64) -> anyhow::Result<f64> {
        self.tensors_of(count, TENSOR, true)
    }

    /// Does the same for tensors of this many bytes, which the actors write and check or leave alone.
    pub(crate) fn tensors_of(&self, count: u64, bytes: usize, touched: bool) -> anyhow::Result<f64> {
        let ends = if touched { Some(&self.touching) } else { self.others.as_ref() };
        let Ends { source, sink } = ends.context("there are no actors that leave bytes alone")?;
        let pour = Pour { to: sink.address(), came: sink.address(), count, bytes };
        let poured = self.pair.node.block_on(source.ask(pour));
        let poured = poured.map_err(|error| anyhow::anyhow!("{error}"))?.map_err(anyhow::Error::msg)?;
        Ok(speed(&poured, bytes))
    }

    pub(crate) fn end(self) -> anyhow::Result<()> {
        let TwoOnDevice { pair, touching, others } = self;
        drop((touching, others));
        pair.end()
    }
}

impl Ends {
    fn start(pair: &Pair, from: &Device, to: &Device, touches: bool, mailbox: u32) -> anyhow::Result<Self> {
        let source = pair.node.spawn::<DeviceSource>(touches).device(from.clone()).start()?;
        let sink = pair.node.spawn::<DeviceSink>(touches).on(&pair.there).device(to.clone());
        Ok(Ends { source, sink: sink.mailbox(mailbox).start()? })
    }
}

pub(crate) fn bare_trips(bare: &Bare, kind: Kind, count: u64) -> anyhow::Result<Percentiles> {
    bare.trips(kind, count / 10, MESSAGE)?;
    Percentiles::of(bare.trips(kind, count, MESSAGE)?)
}

/// Does the same beside large pieces over a connection of their own, and returns the GiB a second of these.
pub(crate) fn bare_trips_beside_bulk(
    bare: &Bare,
    kind: Kind,
    count: u64,
) -> anyhow::Result<(Percentiles, f64)> {
    std::thread::scope(|scope| {
        let pieces = 8 * (TENSOR / PIECE) as u64;
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let pouring = scope.spawn(move || {
            let (mut sent, since) = (0, Instant::now());
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                bare.pour(kind, 1, pieces, PIECE)?;
                sent += pieces;
            }
            anyhow::Ok((sent as usize * PIECE) as f64 / GIB / since.elapsed().as_secs_f64())
        });
        let trips = bare_trips(bare, kind, count);
        drop(stop);
        let speed = pouring.join().map_err(|_| anyhow::anyhow!("{} panicked", kind.name()))??;
        Ok((trips?, speed))
    })
}

pub(crate) fn bare_many(bare: &Bare, kind: Kind, count: u64) -> anyhow::Result<f64> {
    Ok(count as f64 / bare.pour(kind, 1, count, MESSAGE)?.as_secs_f64())
}

/// Returns the GiB a second of as many bytes as this many large tensors have.
pub(crate) fn bare_tensors(bare: &Bare, kind: Kind, connections: u16, count: u64) -> anyhow::Result<f64> {
    let pieces = count * (TENSOR / PIECE) as u64;
    let took = bare.pour(kind, connections.into(), pieces, PIECE)?;
    Ok((count as usize * TENSOR) as f64 / GIB / took.as_secs_f64())
}

/// Returns two builds of `local_messages`, with the feature `hosts` and without, which lie beside this
/// program.
pub(crate) fn local_programs() -> anyhow::Result<Option<[PathBuf; 2]>> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("this program is in no folder")?;
    let both = ["on", "off"].map(|build| folder.join(format!("local_messages.{build}")));
    Ok(both.iter().all(|program| program.exists()).then_some(both))
}

/// Returns the microseconds of a message within a host, and the messages a second, as such a program prints
/// them.
pub(crate) fn local(program: &PathBuf, trips: u64, many: u64) -> anyhow::Result<[f64; 2]> {
    let mut command = Command::new(program);
    let output = command.args(["--trips", &trips.to_string(), "--many", &many.to_string()]).output()?;
    anyhow::ensure!(output.status.success(), "{}: {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout)?;
    let (nanos, rate) = text.trim().split_once(' ').with_context(|| format!("it said {text:?}"))?;
    Ok([nanos.parse::<f64>()? / 1e3, rate.parse()?])
}
