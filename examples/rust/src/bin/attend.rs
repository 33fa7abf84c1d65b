// SPDX-License-Identifier: Apache-2.0
//! Attention from Rust: causal, 4 queries over 6 keys, 4 query heads on 2 key heads.  The backend
//! is the host unless the first argument is "cuda".  Same output as examples/c/attend.c.
use fovea::{AttentionForward, Backend, Build, Context, Memory};

const Q_SHAPE: [usize; 4] = [1, 4, 4, 8]; // b s h d
const KV_SHAPE: [usize; 4] = [1, 6, 2, 8]; // b t g d
const LSE_SHAPE: [usize; 3] = [1, 4, 4]; // b h s

fn fill(shape: &[usize], salt: usize) -> Vec<f32> {
    (0..shape.iter().product())
        .map(|i: usize| (((i * 37 + 11 * salt) % 101) as f64 / 50.0 - 1.0) as f32)
        .collect()
}

/// As C's "% .6f".
fn number(x: f32) -> String {
    let sign = if x.is_sign_negative() { "" } else { " " };
    format!("{sign}{x:.6}")
}

fn main() -> fovea::Result<()> {
    let cuda = std::env::args().nth(1).as_deref() == Some("cuda");
    let ctx = Context::new(if cuda { Backend::CUDA } else { Backend::HOST }, 0)?;

    // Memory of the context's device; on the host backend plain slices would do as well.
    let q = ctx.upload(&fill(&Q_SHAPE, 1))?;
    let k = ctx.upload(&fill(&KV_SHAPE, 2))?;
    let v = ctx.upload(&fill(&KV_SHAPE, 3))?;
    let (mut o, mut lse) = (vec![0f32; 4 * 4 * 8], vec![0f32; 4 * 4]);
    let o_buffer = ctx.alloc(Memory::DEVICE, 4 * o.len())?;
    let lse_buffer = ctx.alloc(Memory::DEVICE, 4 * lse.len())?;

    let mut attend = AttentionForward::new(
        q.tensor::<f32>(Q_SHAPE)?,
        k.tensor::<f32>(KV_SHAPE)?,
        v.tensor::<f32>(KV_SHAPE)?,
        o_buffer.tensor_mut::<f32>(Q_SHAPE)?,
    );
    attend.causal(true).lse(lse_buffer.tensor_mut::<f32>(LSE_SHAPE)?);
    let bytes = attend.workspace(&ctx)?; // optional: valid? how many bytes?
    attend.run(&ctx)?;

    o_buffer.read(&mut o)?;
    lse_buffer.read(&mut lse)?;
    for row in 0..4 {
        for head in 0..4 {
            let values = &o[(row * 4 + head) * 8..][..8];
            print!("row {row} head {head}:");
            values.iter().for_each(|&x| print!(" {}", number(x)));
            println!(" lse {}", number(lse[head * 4 + row]));
        }
    }
    eprintln!(
        "fovea {}, kernel {}, workspace {bytes} bytes",
        fovea::build(Build::VERSION)?,
        ctx.last_kernel()
    );
    Ok(())
}
