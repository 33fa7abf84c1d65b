// SPDX-License-Identifier: Apache-2.0
//! Host time of a call that computes nothing, attention_forward with b = 0, in median ns:
//!
//!   rust           tensors and builder made for each call
//!   rust kept      a builder that is kept
//!   rust prepared  a prepared call
//!
//! The three take turns, so that a busy machine is as busy for each.
use fovea::{AttentionForward, Context, Result, Tensor, TensorMut};
use std::time::Instant;

const SHAPE: [i64; 4] = [0, 1, 8, 64];

fn plain(ctx: &Context, x: &[f32], o: &mut [f32]) -> Result<()> {
    AttentionForward::new(
        Tensor::new(x, SHAPE)?,
        Tensor::new(x, SHAPE)?,
        Tensor::new(x, SHAPE)?,
        TensorMut::new(o, SHAPE)?,
    )
    .run(ctx)
}

fn main() -> Result<()> {
    let ctx = Context::host()?;
    let (x, mut o, mut unused) = ([0f32; 0], [0f32; 0], [0f32; 0]);
    let view = Tensor::new(&x, SHAPE)?;
    let kept = AttentionForward::new(view, view, view, TensorMut::new(&mut o, SHAPE)?);
    let prepared = kept.prepare(&ctx)?;
    let mut times =
        [("rust", Vec::new()), ("rust kept", Vec::new()), ("rust prepared", Vec::new())];
    for round in 0..60000 {
        let start = Instant::now();
        match round % 3 {
            0 => plain(&ctx, &x, &mut unused)?,
            1 => kept.run(&ctx)?,
            _ => prepared.run()?,
        }
        times[round % 3].1.push(start.elapsed().as_nanos() as u64);
    }
    for (name, times) in &mut times {
        times.sort_unstable();
        println!("{name}\t{}", times[times.len() / 2]);
    }
    Ok(())
}
