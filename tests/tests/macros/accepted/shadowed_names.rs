//! The generated code does not depend on what is in scope.

#![deny(warnings)]
#![allow(dead_code, non_camel_case_types)]

use tensorpost::prelude::{Deserialize, GpuMessage, Serialize};

mod shadows {
    use super::{Deserialize, Serialize};

    pub struct Option;
    pub struct Result;
    pub struct Some;
    pub struct None;
    pub struct Ok;
    pub struct Err;
    pub struct Send;
    pub struct DType;
    pub struct usize;

    #[derive(Serialize, Deserialize, tensorpost::prelude::GpuMessage)]
    pub enum Job<T> {
        Stop,
        Blur {
            #[tensor(dtype = f32, shape = [3, _], device = cuda)]
            images: std::vec::Vec<tensorpost::prelude::Tensor>,
            with: T,
        },
    }
}

#[test]
fn all_of_it_is_accepted() {
    assert_eq!(shadows::Job::<u8>::NAME, "Job");
    let blur = shadows::Job::Blur { images: Vec::new(), with: 1_u8 };
    assert!(blur.check().is_ok());
    assert!(shadows::Job::<u8>::Stop.check().is_ok());
}
