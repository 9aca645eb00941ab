use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

fn main() {
    let epoch = std::env::args().count() as u64;
    let numbers = Pipeline::new("captures").items("numbers", move |_| (0..epoch).map(Number));
    let numbers = numbers.map("add", move |Number(n)| Ok(Number(n + 100 * epoch)));
    let numbers = numbers.with(3).filter("most", move |most, Number(n)| *n < epoch + *most);
    let (low, high) = numbers.split(move |Number(n)| *n < epoch);
    let high = high.map("keep", Ok).by_key(move |Number(n)| n % epoch);
    low.merge(high).for_each("drop", |_| Ok(()));
}
