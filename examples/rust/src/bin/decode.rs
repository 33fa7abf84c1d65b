// SPDX-License-Identifier: Apache-2.0
//! Decoding on a paged cache: three sequences join the batch one after another.  A step appends a
//! token to each and attends.  Both calls are prepared once, because what changes lies in memory
//! of the device.  The backend is the host unless the first argument is "cuda".
use fovea::{AttentionForward, Backend, CacheAppend, Context, Memory};

const BATCH: usize = 3;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 32;
const PAGE: usize = 16;
const PAGES: usize = 4;
const STEPS: usize = 50;

#[derive(Clone, Copy)]
enum Kind {
    Query,
    Key,
    Value,
}

/// What a model would give: column c of a token's q, k or v.
fn element(kind: Kind, sequence: usize, token: usize, c: usize) -> f32 {
    ((kind as usize * 17 + sequence * 29 + token * 31 + c * c * 7) % 97) as f32 / 24.0 - 2.0
}

/// The rows of all sequences at a step: sequence i joins at step 7 i.
fn rows(kind: Kind, step: usize, heads: usize) -> Vec<f32> {
    let row =
        |i: usize| (0..heads * WIDTH).map(move |c| element(kind, i, step.saturating_sub(7 * i), c));
    (0..BATCH).flat_map(row).collect()
}

/// The distance of a row from softmax(q k^T / sqrt(d)) v over tokens 0 ..= last, in float64.
fn difference(sequence: usize, last: usize, o: &[f32]) -> f64 {
    let at = |kind, token, c| f64::from(element(kind, sequence, token, c));
    let mut worst = 0f64;
    for c in 0..HEADS * WIDTH {
        let (head, from) = (c / WIDTH, c / WIDTH / (HEADS / KEY_HEADS) * WIDTH);
        let (mut sum, mut mean) = (0.0, 0.0);
        for token in 0..=last {
            let score: f64 = (0..WIDTH)
                .map(|i| at(Kind::Query, last, head * WIDTH + i) * at(Kind::Key, token, from + i))
                .sum();
            let weight = (score / (WIDTH as f64).sqrt()).exp();
            sum += weight;
            mean += weight * at(Kind::Value, token, from + c % WIDTH);
        }
        worst = worst.max((mean / sum - f64::from(o[c])).abs());
    }
    worst
}

fn main() -> fovea::Result<()> {
    let cuda = std::env::args().nth(1).as_deref() == Some("cuda");
    let ctx = Context::new(if cuda { Backend::CUDA } else { Backend::HOST }, 0)?;

    // Sequence i has every third page of the pool: any order will do.
    let table: Vec<i32> =
        (0..BATCH * PAGES).map(|i| (i % PAGES * BATCH + i / PAGES) as i32).collect();
    let page_table = ctx.upload(&table)?;
    let (query_len, key_len) = (ctx.upload(&[0i32; BATCH])?, ctx.upload(&[0i32; BATCH])?);
    let pool = vec![0f32; BATCH * PAGES * PAGE * KEY_HEADS * WIDTH];
    let (pool_k, pool_v) = (ctx.upload(&pool)?, ctx.upload(&pool)?);
    let new = |heads: usize| ctx.alloc(Memory::DEVICE, 4 * BATCH * heads * WIDTH);
    let (q, k, v, out) = (new(HEADS)?, new(KEY_HEADS)?, new(KEY_HEADS)?, new(HEADS)?);

    let fresh = [BATCH, 1, KEY_HEADS, WIDTH];
    let pages = [BATCH * PAGES, PAGE, KEY_HEADS, WIDTH];
    let append = CacheAppend::new()
        .k_new(k.tensor::<f32>(fresh)?)
        .v_new(v.tensor::<f32>(fresh)?)
        .k(pool_k.tensor_mut::<f32>(pages)?)
        .v(pool_v.tensor_mut::<f32>(pages)?)
        .page_table(page_table.tensor::<i32>([BATCH, PAGES])?)
        .query_len(query_len.tensor::<i32>([BATCH])?)
        .key_len(key_len.tensor::<i32>([BATCH])?)
        .key_len_out(key_len.tensor_mut::<i32>([BATCH])?)
        .prepare(&ctx)?;
    let attend = AttentionForward::new(
        q.tensor::<f32>([BATCH, 1, HEADS, WIDTH])?,
        pool_k.tensor::<f32>(pages)?,
        pool_v.tensor::<f32>(pages)?,
        out.tensor_mut::<f32>([BATCH, 1, HEADS, WIDTH])?,
    )
    .page_table(page_table.tensor::<i32>([BATCH, PAGES])?)
    .query_len(query_len.tensor::<i32>([BATCH])?)
    .key_len(key_len.tensor::<i32>([BATCH])?) // with the token that was just appended
    .prepare(&ctx)?;

    let (mut worst, mut o) = (0f64, vec![0f32; BATCH * HEADS * WIDTH]);
    for step in 0..STEPS {
        let joined: Vec<i32> = (0..BATCH).map(|i| i32::from(step >= 7 * i)).collect();
        query_len.write(&joined)?;
        q.write(&rows(Kind::Query, step, HEADS))?;
        k.write(&rows(Kind::Key, step, KEY_HEADS))?;
        v.write(&rows(Kind::Value, step, KEY_HEADS))?;
        append.run()?;
        attend.run()?;
        out.read(&mut o)?;
        for i in (0..BATCH).filter(|&i| step >= 7 * i) {
            worst =
                worst.max(difference(i, step - 7 * i, &o[i * HEADS * WIDTH..][..HEADS * WIDTH]));
        }
    }
    println!("{STEPS} steps by {}, largest difference {worst:.1e}", ctx.last_kernel());
    assert!(worst < 1e-5);
    Ok(())
}
