//! The user's code on the host.

use tensorpost::prelude::*;

use super::Carrier;

/// Makes a function for [`Flow::apply`](tensorpost::pipeline::Flow::apply) from a closure over the elements
/// of an item's tensor. The closure gets the elements in row-major order, and fills the elements of the
/// result, which has the same shape.
///
/// On the host device the closure runs on the stage's stream, so that the item goes on before the closure is
/// done. For a GPU the elements are copied to the host and back, and the stage waits for that; see
/// `MapKernel` for code that runs on the GPU.
///
/// ```standalone_crate
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Named, map_host};
///
/// fn main() -> anyhow::Result<()> {
///     Pipeline::new("squares")
///         .items("numbers", |env| {
///             let numbers = env.stream().from_slice(&[4], &[1.0_f32, 2.0, 3.0, 4.0]).map(TensorMut::freeze);
///             numbers.map(|numbers| Named::new(0, "numbers", numbers))
///         })
///         .apply("square", map_host(|from: &[f32], to: &mut [f32]| {
///             for (to, from) in to.iter_mut().zip(from) {
///                 *to = from * from;
///             }
///         }))
///         .for_each("check", |item: Named| {
///             Ok(anyhow::ensure!(item.tensor.to_vec::<f32>()? == [1.0, 4.0, 9.0, 16.0]))
///         })
///         .run()?;
///     Ok(())
/// }
/// ```
pub fn map_host<T, A, B>(
    map: impl Fn(&[A], &mut [B]) + Copy + Send + Sync + 'static,
) -> impl FnMut(T, &mut Out<T>, &Env) -> anyhow::Result<()> + Copy + Send + Sync + 'static
where
    T: Carrier,
    A: Element,
    B: Element + Default,
{
    move |item: T, out: &mut Out<T>, env: &Env| {
        let stream = env.stream();
        out.emit(item.with(|tensor| mapped(&stream, &tensor, &map))?);
        Ok(())
    }
}

fn mapped<A: Element, B: Element + Default>(
    stream: &DeviceStream,
    tensor: &Tensor,
    map: &(impl Fn(&[A], &mut [B]) + Copy + Send + 'static),
) -> Result<Tensor, TensorError> {
    let mut result = stream.empty(B::DTYPE, tensor.shape())?;
    if stream.kind() == DeviceKind::Host {
        let (tensor, map) = (stream.contiguous(tensor)?, *map);
        stream.run((tensor.of::<A>(), result.of_mut::<B>()), move |(from, to)| map(from, to))?;
    } else {
        let from = stream.download::<A>(tensor)?;
        let mut to = vec![B::default(); from.len()];
        map(&from, &mut to);
        stream.upload(&mut result, &to)?;
    }
    Ok(result.freeze())
}

#[cfg(test)]
mod tests {
    use super::super::item::tests::host;
    use super::*;

    #[test]
    fn the_dtype_may_change_and_strides_do_not_matter() {
        let (_node, stream) = host();
        let tensor = stream.from_slice(&[2, 2], &[1_i32, -2, 3, -4]).expect("room").freeze();
        let columns = tensor.permute(&[1, 0]).expect("turned");
        let signs = mapped(&stream, &columns, &|from: &[i32], to: &mut [bool]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from < 0);
        });
        assert_eq!(signs.expect("mapped").to_vec::<bool>().expect("signs"), [false, false, true, true]);
        let wrong = mapped(&stream, &tensor, &|_: &[f32], _: &mut [f32]| {});
        assert!(matches!(wrong, Err(TensorError::DType { .. })));
    }
}
