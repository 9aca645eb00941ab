//! A pool of workers with a bounded queue of tasks: results come as they are done, in any order, each with
//! the number of its task. The task is a line of the Mandelbrot set, the result a tensor.

use clap::Parser as _;
use tensorpost::prelude::*;
use tensorpost_actors::ready::{Job, TaskPool, TaskPoolSettings};
use tensorpost_examples::Place;

const LINES: usize = 21;
const COLUMNS: usize = 64;
const STEPS: u8 = 63;

/// The line to compute, by its imaginary part.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Line(f64);

/// The job of a worker.
struct Mandelbrot(DeviceStream);

impl Job for Mandelbrot {
    type Args = ();
    type Task = Line;
    type Done = Tensor;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Mandelbrot(env.stream())) // in the worker process
    }

    fn run(&mut self, Line(y): Line) -> anyhow::Result<Tensor> {
        let x = |column: usize| -2.1 + 2.8 * column as f64 / COLUMNS as f64;
        let steps: Vec<u8> = (0..COLUMNS).map(|column| steps(x(column), y)).collect();
        Ok(self.0.from_slice(&[COLUMNS], &steps)?.freeze())
    }
}

/// Returns the number of steps until z² + c leaves the circle of radius 2.
fn steps(x: f64, y: f64) -> u8 {
    let (mut re, mut im) = (0.0, 0.0);
    let stays = |_: &u8| {
        (re, im) = (re * re - im * im + x, 2.0 * re * im + y);
        re * re + im * im < 4.0
    };
    (0..STEPS).take_while(stays).count() as u8
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let settings = TaskPoolSettings { queue: 4, ..TaskPoolSettings::workers(3).on(device.clone()) };
    let mut pool = TaskPool::<Mandelbrot>::start(&node, (), settings)?;
    let stream = node.stream(&device)?;

    // The pool takes a task from the iterator when there is room for it.
    let tasks = (0..LINES).map(|line| Line(1.15 - 2.3 * line as f64 / (LINES - 1) as f64));
    let mut picture = vec![String::new(); LINES];
    for (number, line) in pool.map(tasks) {
        let shade = |steps: u8| [' ', '.', ':', '+', '*', '%', '@'][(steps + 1).ilog2() as usize];
        picture[number as usize] = stream.download::<u8>(&line?)?.into_iter().map(shade).collect();
    }
    picture.iter().for_each(|line| println!("{}", line.trim_end()));
    println!("{LINES} tasks are done, {} are open", pool.open());
    Ok(())
}
