//! Each form that `#[stage]` reads becomes the impl that one would write by hand, as the types show.

#![deny(warnings)]
#![allow(clippy::non_minimal_cfg)]

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct A(u64);

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct B(u64);

fn is_stage<S: Stage<Args = Args, In = In, Out = Made>, Args, In, Made>() {}
fn is_source<S: Source<Args = Args, Out = Made>, Args, Made>() {}
fn is_sink<S: Sink<Args = Args, In = In>, Args, In>() {}

/// A stage with everything that a stage can have.
struct Full {
    env: Env,
    from: u64,
}

#[stage]
impl Full {
    const MORE: u64 = 1;

    fn create(from: u64, env: &Env) -> anyhow::Result<Self> {
        Ok(Full { env: env.clone(), from })
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        self.env = env.clone();
        Ok(())
    }

    fn process(&mut self, A(item): A, out: &mut Out<B>) -> anyhow::Result<()> {
        out.emit(self.more(item));
        Ok(())
    }

    fn wake_at(&self) -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(1))
    }

    fn wake(&mut self, out: &mut Out<B>) -> anyhow::Result<()> {
        out.emit(B(self.from));
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<B>) -> anyhow::Result<()> {
        out.emit(self.more(0));
        Ok(())
    }

    fn more(&self, item: u64) -> B {
        B(item + self.from + Self::MORE)
    }
}

/// A stage with as little as possible, made by its `Default`; an error type of its own.
#[derive(Default)]
struct Short;

#[stage]
impl Short {
    fn process(&mut self, item: A) -> Result<B, std::num::ParseIntError> {
        Ok(B(item.0.to_string().parse()?))
    }
}

/// A method that cannot fail returns no `Result`. `out` and `env` are left out where they are not needed.
#[derive(Default)]
struct Plain(u64);

#[stage]
impl Plain {
    fn create(start: u64) -> Self {
        Plain(start)
    }

    async fn prepare(&mut self) {}

    fn process(&self, item: A) -> B {
        B(item.0 + self.0)
    }

    fn finish(&mut self) {}
}

#[derive(Default)]
struct Some1(bool);

#[stage]
impl Some1 {
    fn create(env: &Env) -> Self {
        Some1(env.is_stopping())
    }

    fn process(&mut self, item: A) -> anyhow::Result<Option<B>> {
        Ok(self.0.then_some(B(item.0)))
    }
}

#[derive(Default)]
struct Several;

#[stage]
impl Several {
    fn process(&mut self, item: A, out: &mut Out<B>) {
        out.emit(B(item.0));
    }
}

#[derive(Default)]
struct Many;

#[stage]
impl Many {
    fn prepare(&mut self) -> impl Future<Output = anyhow::Result<()>> {
        std::future::ready(Ok(()))
    }

    fn process(&mut self, item: A) -> Vec<B> {
        (0..item.0).map(B).collect()
    }
}

/// Generics and the where clause of the block are passed on.
struct Generic<T, const N: usize>(PhantomData<T>);

#[stage]
impl<T: Item, const N: usize> Generic<T, N>
where
    T: std::fmt::Debug,
{
    fn create(args: [u64; 2]) -> Self {
        assert_eq!(args.len(), N);
        Generic(PhantomData)
    }

    fn process(&mut self, item: T) -> anyhow::Result<T> {
        println!("{item:?}");
        Ok(item)
    }
}

#[derive(Default)]
struct Numbers(u64);

#[stage]
impl Numbers {
    fn next(&mut self) -> anyhow::Result<Option<A>> {
        self.0 += 1;
        Ok((self.0 < 10).then_some(A(self.0)))
    }

    fn length(&self) -> Option<u64> {
        Some(9)
    }
}

struct Endless;

#[stage]
impl Endless {
    fn create(_: (u8, String), _: &Env) -> anyhow::Result<Endless> {
        Ok(Endless)
    }

    pub fn next(&mut self) -> Option<A> {
        Some(A(0))
    }
}

#[derive(Default)]
struct Print(u64);

#[stage]
impl Print {
    fn consume(&mut self, B(item): B) -> anyhow::Result<()> {
        self.0 += item;
        Ok(())
    }

    #[cfg(all())]
    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    #[cfg(any())]
    async fn prepare(&mut self) -> anyhow::Result<()> {
        this_is_not_there()
    }
}

mod renamed {
    pub(super) use tensorpost as post;
}

#[derive(Default)]
struct Elsewhere;

#[stage(crate = crate::accepted::stage_forms::renamed::post)]
impl Elsewhere {
    fn consume(&mut self, _: B) {}
}

#[test]
fn all_of_it_is_accepted() {
    is_stage::<Full, u64, A, B>();
    is_stage::<Short, (), A, B>();
    is_stage::<Plain, u64, A, B>();
    is_stage::<Some1, (), A, B>();
    is_stage::<Several, (), A, B>();
    is_stage::<Many, (), A, B>();
    is_stage::<Generic<Shown, 2>, [u64; 2], Shown, Shown>();
    is_source::<Numbers, (), A>();
    is_source::<Endless, (u8, String), A>();
    is_sink::<Print, (), B>();
    is_sink::<Elsewhere, (), B>();

    // The block's methods can be called under their own names, the trait's by its name.
    assert_eq!(Short.process(A(3)).unwrap().0, 3);
    assert_eq!(Plain::create(1).process(A(3)).0, 4);
    assert_eq!(<Numbers as Source>::next(&mut Numbers(0)).unwrap().unwrap().0, 1);
    assert_eq!(Source::length(&Numbers(0)), Some(9));
    let mut print = Print(1);
    Sink::consume(&mut print, B(2)).unwrap();
    assert_eq!(print.0, 3);
}

#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
struct Shown(u64);
