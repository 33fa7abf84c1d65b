// SPDX-License-Identifier: Apache-2.0
//! Contexts, buffers, errors and threads.
use fovea::*;

const SHAPE_Q: [i64; 4] = [1, 5, 4, 8];
const SHAPE_K: [i64; 4] = [1, 7, 2, 8];

fn sequence(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + 11 * salt) % 101) as f32 / 50.0 - 1.0).collect()
}

fn problem() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    (sequence(5 * 4 * 8, 1), sequence(7 * 2 * 8, 2), sequence(7 * 2 * 8, 3))
}

fn attend(ctx: &Context) -> Vec<f32> {
    let (q, k, v) = problem();
    let mut o = vec![f32::NAN; q.len()];
    AttentionForward::new(
        Tensor::new(&q, SHAPE_Q).unwrap(),
        Tensor::new(&k, SHAPE_K).unwrap(),
        Tensor::new(&v, SHAPE_K).unwrap(),
        TensorMut::new(&mut o, SHAPE_Q).unwrap(),
    )
    .causal(true)
    .run(ctx)
    .unwrap();
    o
}

/// o[s][h] of the same problem in f64, by the formula.
fn expected() -> Vec<f32> {
    let (q, k, v) = problem();
    let mut o = vec![0f32; q.len()];
    for (row, head) in (0..5).flat_map(|row| (0..4).map(move |head| (row, head))) {
        let at = |x: &[f32], r: usize, heads: usize, h: usize, c: usize| {
            x[(r * heads + h) * 8 + c] as f64
        };
        let seen = row + 7 - 5 + 1;
        let weights: Vec<f64> = (0..seen)
            .map(|key| {
                (0..8).map(|c| at(&q, row, 4, head, c) * at(&k, key, 2, head / 2, c)).sum::<f64>()
            })
            .map(|dot| (dot / 8f64.sqrt()).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        for c in 0..8 {
            let sum: f64 =
                weights.iter().enumerate().map(|(key, w)| w * at(&v, key, 2, head / 2, c)).sum();
            o[(row * 4 + head) * 8 + c] = (sum / total) as f32;
        }
    }
    o
}

#[test]
fn slices() {
    let got = attend(&Context::host().unwrap());
    for (i, (g, w)) in got.iter().zip(expected()).enumerate() {
        assert!((g - w).abs() < 2e-6, "o[{i}] is {g}, wanted {w}");
    }
}

#[test]
fn buffers() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let (q, k, v) = (ctx.upload(&q).unwrap(), ctx.upload(&k).unwrap(), ctx.upload(&v).unwrap());
    let o = ctx.alloc(Memory::DEVICE, q.bytes()).unwrap();
    let mut result = vec![0f32; o.bytes() / 4];
    AttentionForward::new(
        q.tensor::<f32>(&SHAPE_Q).unwrap(),
        k.tensor::<f32>(&SHAPE_K).unwrap(),
        v.tensor::<f32>(&SHAPE_K).unwrap(),
        o.tensor_mut::<f32>(&SHAPE_Q).unwrap(),
    )
    .causal(true)
    .run(&ctx)
    .unwrap();
    o.read(&mut result).unwrap();
    assert_eq!(result, attend(&ctx));
    assert!(matches!(o.read(&mut vec![0f32; 1000]), Err(Error::InvalidArgument(_))));
    assert!(matches!(o.tensor::<f32>(&[1, 6, 4, 8]), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_mask_is_a_bit_for_each_key() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let run = |width: i64| {
        let bits = vec![0xffu8; 20 * width as usize];
        let mut o = vec![0f32; q.len()];
        AttentionForward::new(
            Tensor::new(&q, SHAPE_Q).unwrap(),
            Tensor::new(&k, SHAPE_K).unwrap(),
            Tensor::new(&v, SHAPE_K).unwrap(),
            TensorMut::new(&mut o, SHAPE_Q).unwrap(),
        )
        .mask(Tensor::new(&bits, [1, 4, 5, width]).unwrap())
        .causal(true)
        .run(&ctx)
        .map(|()| o)
    };
    assert_eq!(run(1).unwrap(), attend(&ctx));
    match run(7) {
        Err(Error::InvalidArgument(text)) => assert_eq!(
            text,
            "attention_forward: mask.shape[3] (bytes) is 7, wanted 1: a bit for each of 7 keys; \
             pad with the stride"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn strides_and_aliases() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    // The same numbers with heads outermost, (b, h, s, d) in memory.
    let mut turned = vec![0f32; q.len()];
    for (i, value) in q.iter().enumerate() {
        let (row, head, column) = (i / 32, i / 8 % 4, i % 8);
        turned[(head * 5 + row) * 8 + column] = *value;
    }
    let mut o = vec![0f32; q.len()];
    AttentionForward::new(
        Tensor::new(&turned, SHAPE_Q).unwrap().strided([160, 8, 40, 1]).unwrap(),
        Tensor::new(&k, SHAPE_K).unwrap(),
        Tensor::new(&v, SHAPE_K).unwrap(),
        TensorMut::new(&mut o, SHAPE_Q).unwrap(),
    )
    .causal(true)
    .run(&ctx)
    .unwrap();
    assert_eq!(o, attend(&ctx));
    let view = Tensor::new(&q, SHAPE_Q).unwrap();
    assert!(view.strided([160, 32, 8, 2]).is_err(), "reaches past the slice");
    let said = |q: &[i64], o: &[i64]| {
        let mut out = vec![0f32; 160];
        let called = AttentionForward::new(
            view.strided(q).unwrap(),
            Tensor::new(&k, SHAPE_K).unwrap(),
            Tensor::new(&v, SHAPE_K).unwrap(),
            TensorMut::new(&mut out, SHAPE_Q).unwrap().strided(o).unwrap(),
        )
        .run(&ctx);
        match called {
            Err(Error::InvalidArgument(text)) => text,
            other => std::format!("{other:?}"),
        }
    };
    let plain = [160, 32, 8, 1];
    assert_eq!(
        said(&[0, 0, 0, 0], &plain),
        "attention_forward: q.stride is 0 on every axis over 160 elements: fill it in, as \
         fovea_contiguous does"
    );
    assert_eq!(
        said(&plain, &[160, 32, 1, 1]),
        "attention_forward: o.stride[2] is 1, wanted more than 7, which axis 3 reaches: elements \
         of an output may not overlap"
    );
    assert_eq!(said(&[0, 0, 0, 1], &plain), "Ok(())", "one row, broadcast");
    assert!(Tensor::of::<E2m1>(&[0u8; 3], &[6]).is_ok());
    assert!(Tensor::of::<E2m1>(&[0u8; 3], &[7]).is_err());

    // y may be x: what the borrow checker cannot say is said by hand.
    let mut x = sequence(2 * 4, 1);
    let (cos, sin) = (vec![0f32; 4], vec![1f32; 4]);
    let shape = [1, 2, 1, 4];
    let strides = [8, 4, 4, 1];
    let address = x.as_mut_ptr();
    let (source, mut target) = unsafe {
        (
            Tensor::from_raw(address.cast(), DType::F32, shape, strides).unwrap(),
            TensorMut::from_raw(address.cast(), DType::F32, shape, strides).unwrap(),
        )
    };
    let table = |values| Tensor::new(values, [2, 2]).unwrap();
    RopeForward::new(source, &mut target, table(&cos), table(&sin)).run(&ctx).unwrap();
    let before = sequence(8, 1);
    assert_eq!(x[..4], [-before[2], -before[3], before[0], before[1]], "a quarter turn");
}

#[test]
fn errors_name_the_field() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let mut o = vec![0f32; q.len()];
    let error = AttentionForward::new(
        Tensor::new(&q, SHAPE_Q).unwrap(),
        Tensor::new(&k, SHAPE_K).unwrap(),
        Tensor::new(&v, [1, 6, 2, 8]).unwrap(),
        TensorMut::new(&mut o, SHAPE_Q).unwrap(),
    )
    .run(&ctx)
    .unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    assert_eq!(error.text(), "attention_forward: v.shape[1] (t) is 6, wanted 7 as in k");
    assert_eq!(error.to_string(), error.text());

    let halves = vec![0u16; q.len()];
    let error = AttentionForward::new(
        Tensor::of::<F16>(&halves, &SHAPE_Q).unwrap(),
        Tensor::new(&k, SHAPE_K).unwrap(),
        Tensor::new(&v, SHAPE_K).unwrap(),
        TensorMut::new(&mut o, SHAPE_Q).unwrap(),
    )
    .workspace(&ctx)
    .unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    assert!(Context::new(Backend(77), 0).is_err());
    assert!(Context::new(Backend::HOST, 5).is_err());
    // An error does not outlive the next good call.
    assert_eq!(attend(&ctx).len(), q.len());
}

#[test]
fn facts() {
    assert!(version().unwrap() >= 100);
    assert!(build(Build::OPERATIONS)
        .unwrap()
        .split(',')
        .any(|op| op.trim() == "attention_forward"));
    assert_eq!(device_count(Backend::HOST).unwrap(), 1);
    let ctx = Context::host().unwrap();
    assert_eq!(ctx.last_kernel(), "");
    assert_eq!(ctx.get(Property::BACKEND).unwrap(), Backend::HOST.0 as i64);
    ctx.set_threads(2).unwrap();
    assert_eq!(ctx.get(Property::THREADS).unwrap(), 2);
    assert!(ctx.get(Property(99)).is_err());
    attend(&ctx);
    assert!(ctx.last_kernel().starts_with("attention_forward.host"), "{}", ctx.last_kernel());
    assert_eq!(ctx.last_plan(), ctx.last_kernel());
    assert_eq!(ctx.last_reasons(), "");
    ctx.wait(&Context::host().unwrap()).unwrap();
    ctx.synchronize().unwrap();
}

#[test]
fn a_fixed_workspace_that_is_too_small_says_so() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let (mut o, lse) = (attend(&ctx), vec![0f32; 20]);
    let dout = q.clone();
    let mut dq = vec![0f32; q.len()];
    let forward = o.clone();
    let (tq, tk, tv) = (
        Tensor::new(&q, SHAPE_Q).unwrap(),
        Tensor::new(&k, SHAPE_K).unwrap(),
        Tensor::new(&v, SHAPE_K).unwrap(),
    );
    let (to, tl, td) = (
        Tensor::new(&forward, SHAPE_Q).unwrap(),
        Tensor::new(&lse, [1, 4, 5]).unwrap(),
        Tensor::new(&dout, SHAPE_Q).unwrap(),
    );
    let mut tdq = TensorMut::new(&mut dq, SHAPE_Q).unwrap();
    let mut backward = AttentionBackward::new(tq, tk, tv, to, tl, td);
    backward.dq(&mut tdq).causal(true);
    let bytes = backward.workspace(&ctx).unwrap();
    assert!(bytes > 0);
    let small = ctx.alloc(Memory::DEVICE, 256).unwrap();
    unsafe { ctx.set_workspace(small.as_ptr(), 1).unwrap() };
    assert!(matches!(backward.run(&ctx), Err(Error::OutOfMemory(_))));
    let enough = ctx.alloc(Memory::DEVICE, bytes).unwrap();
    unsafe { ctx.set_workspace(enough.as_ptr(), bytes).unwrap() };
    backward.run(&ctx).unwrap();
    unsafe { ctx.set_workspace(std::ptr::null_mut(), 0).unwrap() };
    o.clear();
}

#[test]
fn host_memory_stays_off_the_device() {
    if device_count(Backend::CUDA).unwrap() == 0 {
        assert!(Context::cuda(0).is_err());
        return;
    }
    let ctx = Context::cuda(0).unwrap();
    let (q, k, v) = problem();
    let mut o = vec![0f32; q.len()];
    let error = AttentionForward::new(
        Tensor::new(&q, SHAPE_Q).unwrap(),
        Tensor::new(&k, SHAPE_K).unwrap(),
        Tensor::new(&v, SHAPE_K).unwrap(),
        TensorMut::new(&mut o, SHAPE_Q).unwrap(),
    )
    .run(&ctx)
    .unwrap_err();
    assert!(error.text().contains("host memory"), "{error}");
}

#[test]
fn contexts_work_side_by_side() {
    let want = attend(&Context::host().unwrap());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let ctx = Context::host().unwrap(); // made here, used there
            std::thread::spawn(move || {
                let results: Vec<_> = (0..50).map(|_| attend(&ctx)).collect();
                // This thread's error is its own.
                let error = Context::new(Backend::HOST, -1).unwrap_err();
                (results, error)
            })
        })
        .collect();
    for worker in workers {
        let (results, error) = worker.join().unwrap();
        assert!(results.iter().all(|result| *result == want));
        assert!(!error.text().is_empty());
    }
}

/// Context is Send and not Sync: the second impl would be ambiguous if it were Sync.
#[test]
fn context_is_send_and_not_sync() {
    trait Probe<Marker> {
        fn sees() {}
    }
    struct IsSync;
    impl<T: ?Sized> Probe<()> for T {}
    impl<T: ?Sized + Sync> Probe<IsSync> for T {}
    <Context as Probe<_>>::sees();
    fn send<T: Send>() {}
    send::<Context>();
}
