// SPDX-License-Identifier: Apache-2.0
//! Host time of a call that computes nothing: `rust<TAB>median ns` of attention_forward with b = 0.
use fovea::{AttentionForward, Context, Tensor, TensorMut};
use std::time::Instant;

fn main() -> fovea::Result<()> {
    let ctx = Context::host()?;
    let nothing: [f32; 0] = [];
    let mut o: [f32; 0] = [];
    let mut times: Vec<u64> = Vec::new();
    for _ in 0..20000 {
        let start = Instant::now();
        AttentionForward::new(
            &Tensor::new(&nothing, &[0, 1, 8, 64])?,
            &Tensor::new(&nothing, &[0, 1, 8, 64])?,
            &Tensor::new(&nothing, &[0, 1, 8, 64])?,
            &mut TensorMut::new(&mut o, &[0, 1, 8, 64])?,
        )
        .run(&ctx)?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    println!("rust\t{}", times[times.len() / 2]);
    Ok(())
}
