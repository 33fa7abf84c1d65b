// SPDX-License-Identifier: Apache-2.0
//! Calls that are kept and run many times.
use crate::Context;

/// A call of an operation that is checked, bound to a context and kept: `run` it many times.
///
/// Every operation has `prepare`, and its prepared call a `set_` method for each field.
/// Memory that changes between runs is a [`Buffer`](crate::Buffer): slices stay borrowed.
///
/// ```
/// use fovea::{AttentionForward, Context, Memory};
/// # fn main() -> fovea::Result<()> {
/// let ctx = Context::host()?;
/// let (q, other) = (ctx.upload(&[0.1f32; 32])?, ctx.upload(&[0.2f32; 32])?);
/// let (k, v) = (ctx.upload(&[0.3f32; 48])?, ctx.upload(&[0.4f32; 48])?);
/// let o = ctx.alloc(Memory::DEVICE, 4 * 32)?;
/// let mut call = AttentionForward::new(
///     q.tensor::<f32>([1, 1, 4, 8])?, // (b, s, h, d)
///     k.tensor::<f32>([1, 3, 2, 8])?, // (b, t, g, d)
///     v.tensor::<f32>([1, 3, 2, 8])?,
///     o.tensor_mut::<f32>([1, 1, 4, 8])?,
/// )
/// .prepare(&ctx)?;
/// println!("{} bytes of workspace", call.workspace()?);
/// let mut row = [0f32; 32];
/// for step in 0..3 {
///     v.write(&[step as f32; 48])?; // new contents
///     call.run()?;
///     o.read(&mut row)?;
///     assert!((row[0] - step as f32).abs() < 1e-6);
/// }
/// call.set_q(other.tensor::<f32>([1, 1, 4, 8])?)?.set_causal(true); // another tensor
/// call.run()?;
/// # Ok(())
/// # }
/// ```
///
/// A slice cannot change while a call has it:
///
/// ```compile_fail,E0506
/// # use fovea::{AttentionForward, Context, Tensor, TensorMut};
/// # let ctx = Context::host().unwrap();
/// let (mut q, kv, mut o) = ([0f32; 8], [0f32; 8], [0f32; 8]);
/// let shape = [1, 1, 1, 8];
/// let view = Tensor::new(&kv, shape).unwrap();
/// let to = TensorMut::new(&mut o, shape).unwrap();
/// let call = AttentionForward::new(Tensor::new(&q, shape).unwrap(), view, view, to).prepare(&ctx).unwrap();
/// q[0] = 1.0; // an error: `call` reads q
/// call.run().unwrap();
/// ```
#[derive(Debug)]
pub struct Prepared<'c, Op> {
    pub(crate) ctx: &'c Context,
    pub(crate) call: Op,
}

impl<'c, Op> Prepared<'c, Op> {
    /// The context that it runs on.
    pub fn context(&self) -> &'c Context {
        self.ctx
    }
}
