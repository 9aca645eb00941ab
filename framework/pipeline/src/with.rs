//! Closures with arguments.

use std::hash::Hash;
use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpost_core::api::actor::{CapturesNothing, Code, Env, captures_nothing};

use super::flow::{AfterSource, AfterStage, Ending, Flow, Pipeline, hash};
use super::item::Item;
use super::many::{Either, Pair};
use super::out::Out;
use super::plan::Kind;
use super::stages::{Applied, Apply, Items, Iterated, MakeIterated, Nothing};
use super::work::{SourceWork, StageWork};
use super::worker::args::Select;
use super::worker::pick::number;

/// A flow, or a pipeline, whose next closure gets arguments: see [`Flow::with`].
#[must_use = "the method that takes the closure comes behind it"]
pub struct With<To, A> {
    pub(super) to: To,
    pub(super) args: A,
}

impl<A: Serialize + DeserializeOwned + 'static> With<Pipeline, A> {
    /// As [`Pipeline::items`]; each life of the source calls `make` with the arguments.
    pub fn items<T, I, F>(self, name: &str, make: F) -> Flow<T, AfterSource>
    where
        T: Item,
        I: IntoIterator<Item = T>,
        I::IntoIter: 'static,
        F: FnOnce(A, &Env) -> I + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let code = Code::new(&self.args, move |args| {
            Box::new(move |env: &Env| Box::new(make(args, env).into_iter().map(Ok)) as Iterated<T>)
                as MakeIterated<T>
        });
        self.to.begin(name, Rc::new(SourceWork::<Items<T>>(code)))
    }
}

impl<T: Item, At, A: Serialize + DeserializeOwned + 'static> With<Flow<T, At>, A> {
    /// As [`Flow::map`].
    pub fn map<O: Item, F>(self, name: &str, mut map: F) -> Flow<O, AfterStage<T>>
    where
        F: FnMut(&mut A, T) -> anyhow::Result<O> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let flow = self.apply(name, move |args, item, out, _| map(args, item).map(|item| out.emit(item)));
        flow.tune(|stage| (stage.one_of_each, stage.holds_nothing) = (true, true))
    }

    /// As [`Flow::filter`].
    pub fn filter<F>(self, name: &str, mut keep: F) -> Flow<T, AfterStage<T>>
    where
        F: FnMut(&mut A, &T) -> bool + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let flow = self.apply(name, move |args, item, out, _| {
            if keep(args, &item) {
                out.emit(item);
            }
            Ok(())
        });
        flow.tune(|stage| stage.holds_nothing = true)
    }

    /// As [`Flow::flat_map`].
    pub fn flat_map<O: Item, I, F>(self, name: &str, mut map: F) -> Flow<O, AfterStage<T>>
    where
        I: IntoIterator<Item = O>,
        F: FnMut(&mut A, T) -> anyhow::Result<I> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let flow = self.apply(name, move |args, item, out, _| {
            map(args, item)?.into_iter().for_each(|item| out.emit(item));
            Ok(())
        });
        flow.tune(|stage| stage.holds_nothing = true)
    }

    /// As [`Flow::apply`].
    pub fn apply<O: Item, F>(self, name: &str, apply: F) -> Flow<O, AfterStage<T>>
    where
        F: FnMut(&mut A, T, &mut Out<O>, &Env) -> anyhow::Result<()> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.ends_in(name, apply, Kind::Stage)
    }

    /// As [`Flow::for_each`].
    pub fn for_each<F>(self, name: &str, mut consume: F) -> Ending<T>
    where
        F: FnMut(&mut A, T) -> anyhow::Result<()> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.ends_in::<Nothing, _, _>(name, move |args, item, _, _| consume(args, item), Kind::Sink)
    }

    fn ends_in<O: Item, B, F>(self, name: &str, mut apply: F, kind: Kind) -> Flow<B, AfterStage<T>>
    where
        F: FnMut(&mut A, T, &mut Out<O>, &Env) -> anyhow::Result<()> + CapturesNothing,
    {
        let code = Code::new(&self.args, move |mut args: A| {
            let apply = move |item, out: &mut Out<O>, env: &Env| apply(&mut args, item, out, env);
            Box::new(apply) as Applied<T, O>
        });
        self.to.then(name, Rc::new(StageWork::<Apply<T, O>>(code)), kind)
    }

    /// As [`Flow::spread_by_key`].
    pub fn spread_by_key<K: Hash, F, const N: usize>(self, key: F) -> [Flow<T>; N]
    where
        F: Fn(&A, &T) -> K + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let code = Code::new(&self.args, move |args| number(move |item| hash(&key(&args, item))));
        self.to.fork(Select::By(code))
    }

    /// As [`Flow::split`].
    pub fn split<F>(self, first: F) -> (Flow<T>, Flow<T>)
    where
        F: Fn(&A, &T) -> bool + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let code = Code::new(&self.args, move |args| number(move |item| u64::from(!first(&args, item))));
        let [first, second] = self.to.fork(Select::By(code));
        (first, second)
    }

    /// As [`Flow::iterate`]; the arguments are for `again`.
    pub fn iterate<B, F>(self, bound: u32, body: impl FnOnce(Flow<T>) -> Flow<T, B>, again: F) -> Flow<T>
    where
        F: Fn(&A, &T) -> bool + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let With { to, args } = self;
        to.in_a_loop(bound, body, |results| results.with(args).split(again))
    }

    /// As [`Flow::join`].
    pub fn join<B: Item, X, K: Hash, L, R>(
        self,
        other: Flow<B, X>,
        left: L,
        right: R,
    ) -> Flow<Pair<T, B>, AfterStage<Either<T, B>>>
    where
        L: Fn(&A, &T) -> K + CapturesNothing,
        R: Fn(&A, &B) -> K + CapturesNothing,
    {
        const { captures_nothing::<L>() };
        const { captures_nothing::<R>() };
        let key = Code::new(&self.args, move |args| {
            number(move |item: &Either<T, B>| match item {
                Either::Left(item) => hash(&left(&args, item)),
                Either::Right(item) => hash(&right(&args, item)),
            })
        });
        self.to.pair(other, Some(key))
    }
}

impl<T, I: Item, A: Serialize + DeserializeOwned + 'static> With<Flow<T, AfterStage<I>>, A> {
    /// As [`Flow::by_key`].
    pub fn by_key<K: Hash, F>(self, key: F) -> Flow<T, AfterStage<I>>
    where
        F: Fn(&A, &I) -> K + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let code = Code::new(&self.args, move |args| number(move |item| hash(&key(&args, item))));
        self.to.select_by(code)
    }
}

impl<To, A> std::fmt::Debug for With<To, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("With")
    }
}
