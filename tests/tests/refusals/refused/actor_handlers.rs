//! Handlers that cannot be, each with the way that there is.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Found(u64);

#[derive(Serialize, Deserialize, GpuMessage)]
struct Lost;

#[derive(Default)]
struct Tracker;

#[actor]
impl Tracker {
    #[handler]
    async fn waits(&mut self, _: Found) {}

    #[handler]
    fn takes_nothing(&mut self) {}

    #[handler]
    fn without_an_actor(_: Found) {}

    #[handler]
    fn generic<T>(&mut self, _: Found) {}

    #[handler]
    fn with_the_environment(&mut self, _: Found, _: &Env) {}

    #[handler]
    fn nameless(&mut self, _: Found) -> impl Future<Output = ()> + use<> {
        async {}
    }

    #[handler]
    fn once(&mut self, _: Lost) {}

    #[handler]
    fn twice(&mut self, _: Lost) {}

    #[handler(quickly)]
    fn unknown(&mut self, _: Found) {}

    #[handler]
    fn started(&mut self, _: Found) {}
}

fn main() {}
