//! Portable messages: generic ones, through other names of the crate, beside all attributes.

use std::collections::HashMap;
use std::marker::PhantomData;

use tensorpost as tp;
use tensorpost::message::Portable;
use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable, reply = Vec<T>)]
struct Batch<T, const N: usize>
where
    T: Clone,
{
    items: Vec<T>,
    #[tensor(shape = [N, _])]
    pixels: Option<Tensor>,
    kind: PhantomData<T>,
}

#[derive(Clone, Serialize, Deserialize, Portable)]
#[portable(crate = tp)]
struct Pair<A, B>(A, B);

#[derive(Serialize, Deserialize, Portable)]
struct Tree<T> {
    value: T,
    children: Vec<Tree<T>>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable, crate = tp)]
enum Question {
    Where(Address<Batch<u8, 2>>),
    Again { to: Box<Address<Question>>, by_name: HashMap<String, Tree<Pair<u8, bool>>> },
}

#[test]
fn all_of_it_is_accepted() {
    assert_ne!(Batch::<u8, 2>::schema(), Batch::<u8, 3>::schema());
    assert_ne!(Batch::<u8, 2>::schema(), Batch::<u16, 2>::schema());
    assert_eq!(Batch::<Pair<u8, u8>, 2>::schema(), Batch::<(u8, u8), 2>::schema());
    assert!(Tree::<u8>::schema().contains(r#"{"outer":0}"#));
    assert!(Question::schema().contains(r#"{"address":{"message":"Batch","#));
}
