// SPDX-License-Identifier: Apache-2.0
//! Shapes of any integers, builders that are kept, prepared calls, halves.
#![allow(clippy::needless_borrows_for_generic_args)] // references are one form that is tested
use fovea::*;

fn sequence(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + 11 * salt) % 101) as f32 / 50.0 - 1.0).collect()
}

const Q: [usize; 4] = [1, 5, 4, 8];
const K: [usize; 4] = [1, 7, 2, 8];

/// The plain call, all in one expression.
fn attend(ctx: &Context, q: &[f32], k: &[f32], v: &[f32], causal: bool) -> Vec<f32> {
    let mut o = vec![f32::NAN; q.len()];
    AttentionForward::new(
        &Tensor::new(q, Q).unwrap(),
        &Tensor::new(k, K).unwrap(),
        &Tensor::new(v, K).unwrap(),
        &mut TensorMut::new(&mut o, Q).unwrap(),
    )
    .causal(causal)
    .run(ctx)
    .unwrap();
    o
}

fn problem() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    (sequence(160, 1), sequence(112, 2), sequence(112, 3))
}

#[test]
fn shapes_are_any_integers() {
    let x = sequence(160, 1);
    let raw = |view: Tensor| (view.as_raw().shape, view.as_raw().stride, view.as_raw().ndim);
    let want = ([1, 5, 4, 8, 0], [160, 32, 8, 1, 0], 4);
    let rows = x.len() / 32;
    assert_eq!(raw(Tensor::new(&x, [1, rows, 4, 8]).unwrap()), want);
    assert_eq!(raw(Tensor::new(&x, [1i64, 5, 4, 8]).unwrap()), want);
    assert_eq!(raw(Tensor::new(&x, &[1i32, 5, 4, 8]).unwrap()), want);
    assert_eq!(raw(Tensor::new(&x, [1u32, 5, 4, 8]).unwrap()), want);
    assert_eq!(raw(Tensor::new(&x, vec![1u64, 5, 4, 8]).unwrap()), want);
    assert_eq!(raw(Tensor::new(&x, &vec![1isize, 5, 4, 8]).unwrap()), want);
    assert_eq!(raw(Tensor::new(&x, &Q[..]).unwrap()), want);
    // As ndarray and candle give them.
    let (shape, strides, steps): (&[usize], &[isize], &[usize]) =
        (&Q, &[160, 8, 40, 1], &[160, 8, 40, 1]);
    let turned = raw(Tensor::new(&x, shape).unwrap().strided(strides).unwrap());
    assert_eq!(turned, ([1, 5, 4, 8, 0], [160, 8, 40, 1, 0], 4));
    assert_eq!(raw(Tensor::new(&x, shape).unwrap().strided(steps).unwrap()), turned);
}

#[test]
fn a_bad_shape_names_its_axis() {
    let x = sequence(160, 1);
    let said = |made: Result<Tensor>| match made {
        Err(Error::InvalidArgument(text)) => text,
        other => panic!("{other:?}"),
    };
    let view = Tensor::new(&x, Q).unwrap();
    assert_eq!(said(Tensor::new(&x, [1, -5, 4])), "tensor: shape[1] is -5, wanted >= 0");
    assert_eq!(
        said(Tensor::new(&x, [1, usize::MAX])),
        "tensor: shape[1] is 18446744073709551615, wanted at most 9223372036854775807"
    );
    assert_eq!(
        said(Tensor::new(&x, [i64::MAX, 2])),
        "tensor: shape[0] is 9223372036854775807: shape [9223372036854775807, 2] has more \
         elements than 64 bits count"
    );
    assert_eq!(said(Tensor::new(&x, [1; 6])), "tensor: shape has 6 axes, wanted at most 5");
    assert_eq!(said(view.strided([160, 32, 8, -1])), "tensor: stride[3] is -1, wanted >= 0");
    assert_eq!(said(view.strided([32, 8, 1])), "tensor: stride has 3 axes, wanted 4 as in shape");
    assert_eq!(
        said(Tensor::new(&x, [2, 5, 4, 8])),
        "tensor: shape [2, 5, 4, 8], strides [160, 32, 8, 1] reach element 319 of 160"
    );
    assert_eq!(
        said(unsafe { Tensor::from_raw(x.as_ptr().cast(), DType::F32, [2i64], [-1i64]) }),
        "tensor: stride[0] is -1, wanted >= 0"
    );
}

/// A builder with its options, kept by somebody.
struct Layer<'a> {
    call: AttentionForward<'a>,
}

impl<'a> Layer<'a> {
    fn new(q: Tensor<'a>, k: Tensor<'a>, v: Tensor<'a>, o: TensorMut<'a>) -> Layer<'a> {
        let mut call = AttentionForward::new(q, k, v, o);
        call.causal(true);
        Layer { call }
    }
}

#[test]
fn a_builder_is_kept() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let mut o = vec![0f32; q.len()];
    // Inputs by reference to temporaries, the output by value.
    let mut call = AttentionForward::new(
        &Tensor::new(&q, Q).unwrap(),
        &Tensor::new(&k, K).unwrap(),
        Tensor::new(&v, K).unwrap(),
        TensorMut::new(&mut o, Q).unwrap(),
    );
    call.causal(true);
    for _ in 0..3 {
        call.run(&ctx).unwrap();
    }
    assert_eq!(o, attend(&ctx, &q, &k, &v, true));
    // A view that is lent serves again, and its tensor can be read.
    let mut to = TensorMut::new(&mut o, Q).unwrap();
    let view = Tensor::new(&k, K).unwrap();
    AttentionForward::new(Tensor::new(&q, Q).unwrap(), view, view, &mut to).run(&ctx).unwrap();
    let mut twice = vec![0f32; 160];
    let again = TensorMut::new(&mut twice, Q).unwrap();
    AttentionForward::new(&to, view, view, again).run(&ctx).unwrap();
    assert_eq!(twice, attend(&ctx, &o, &k, &k, false));
    let layer = Layer::new(
        Tensor::new(&q, Q).unwrap(),
        Tensor::new(&k, K).unwrap(),
        Tensor::new(&v, K).unwrap(),
        TensorMut::new(&mut o, Q).unwrap(),
    );
    layer.call.run(&ctx).unwrap();
    layer.call.run(&ctx).unwrap();
    assert_eq!(o, attend(&ctx, &q, &k, &v, true));
}

#[test]
fn a_prepared_call_runs_many_times() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let upload = |x: &[f32]| ctx.upload(x).unwrap();
    let (bq, bk, bv) = (upload(&q), upload(&k), upload(&v));
    let o = ctx.alloc(Memory::DEVICE, 4 * q.len()).unwrap();
    let mut call = AttentionForward::new(
        bq.tensor::<f32>(Q).unwrap(),
        bk.tensor::<f32>(K).unwrap(),
        bv.tensor::<f32>(K).unwrap(),
        o.tensor_mut::<f32>(Q).unwrap(),
    )
    .causal(true)
    .prepare(&ctx)
    .unwrap();
    assert!(std::ptr::eq(call.context(), &ctx));
    let mut got = vec![0f32; q.len()];
    let mut check = |q: &[f32], v: &[f32], causal| {
        o.read(&mut got).unwrap();
        assert_eq!(got, attend(&ctx, q, &k, v, causal));
    };
    call.run().unwrap();
    check(&q, &v, true);
    // Other contents of the same memory.
    let other = sequence(112, 9);
    bv.write(&other).unwrap();
    call.run().unwrap();
    check(&q, &other, true);
    // Other memory, other numbers.
    let q2 = sequence(160, 5);
    call.set_q(Tensor::new(&q2, Q).unwrap()).unwrap().set_causal(false);
    call.run().unwrap();
    check(&q2, &other, false);
    let bytes = call.workspace().unwrap();
    // A refusal names the field, and the next good tensor serves.
    call.set_q(Tensor::new(&q2, [1, 5, 2, 16]).unwrap()).unwrap();
    let error = call.run().unwrap_err();
    assert!(error.text().contains("attention_forward: k.shape[3] (d) is 8"), "{error}");
    assert!(call.workspace().is_err());
    call.set_q(bq.tensor::<f32>(Q).unwrap()).unwrap();
    assert_eq!(call.workspace().unwrap(), bytes);
    let other_o = ctx.alloc(Memory::DEVICE, 4 * q.len()).unwrap();
    call.set_o(other_o.tensor_mut::<f32>(Q).unwrap()).unwrap();
    call.run().unwrap();
    check(&q2, &other, false); // o stays as it was
    other_o.read(&mut got).unwrap();
    assert_eq!(got, attend(&ctx, &q, &k, &other, false));
}

#[test]
fn a_call_that_cannot_run_is_not_prepared() {
    let ctx = Context::host().unwrap();
    let (q, k, _) = problem();
    let b = ctx.upload(&q).unwrap();
    let (k, view) = (Tensor::new(&k, K).unwrap(), b.tensor::<f32>(Q).unwrap());
    // A buffer that is read and written: Rust lets it pass, the library does not.
    let call = AttentionForward::new(view, k, k, b.tensor_mut::<f32>(Q).unwrap());
    match call.prepare(&ctx) {
        Err(Error::InvalidArgument(text)) => {
            assert_eq!(text, "attention_forward: o.data is that of q, wanted memory of its own")
        }
        other => panic!("{other:?}"),
    }
    // Where the operation says "may be x", one buffer is both.
    let x = ctx.upload(&sequence(8, 1)).unwrap();
    let (cos, sin) = (vec![0f32; 4], vec![1f32; 4]);
    let table = |values| Tensor::new(values, [2, 2]).unwrap();
    let shape = [1, 2, 1, 4];
    RopeForward::new(
        x.tensor::<f32>(shape).unwrap(),
        x.tensor_mut::<f32>(shape).unwrap(),
        table(&cos),
        table(&sin),
    )
    .run(&ctx)
    .unwrap();
    let (mut after, before) = (vec![0f32; 8], sequence(8, 1));
    x.read(&mut after).unwrap();
    assert_eq!(after[..4], [-before[2], -before[3], before[0], before[1]], "a quarter turn");
}

#[test]
fn experimental_operations_have_a_module() {
    use fovea::experimental::{XGroupNormForward, XPool};
    assert_ne!(XPool(0), XPool(1));
    let ctx = Context::host().unwrap();
    let x = sequence(160, 1);
    let mut y = vec![0f32; 160];
    let view = Tensor::new(&x, Q).unwrap();
    let error = XGroupNormForward::new(view, TensorMut::new(&mut y, [1, 5, 4, 4]).unwrap())
        .run(&ctx)
        .unwrap_err();
    assert!(error.text().starts_with("x_group_norm_forward: "), "{error}");
}

/// The numbers of a crate `half` are those of the formats.
#[cfg(feature = "half")]
#[test]
fn halves() {
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let bits = |x: &[f32]| x.iter().map(|x| (x.to_bits() >> 16) as u16).collect::<Vec<u16>>();
    let (q, k, v) = (bits(&q), bits(&k), bits(&v));
    let mut want = vec![0u16; q.len()];
    AttentionForward::new(
        Tensor::of::<Bf16>(&q, Q).unwrap(),
        Tensor::of::<Bf16>(&k, K).unwrap(),
        Tensor::of::<Bf16>(&v, K).unwrap(),
        TensorMut::of::<Bf16>(&mut want, Q).unwrap(),
    )
    .run(&ctx)
    .unwrap();
    let typed = |x: &[u16]| x.iter().map(|&x| half::bf16::from_bits(x)).collect::<Vec<_>>();
    let (q, k, v) = (typed(&q), typed(&k), typed(&v));
    let mut o = typed(&vec![0; q.len()]);
    AttentionForward::new(
        Tensor::new(&q, Q).unwrap(),
        Tensor::new(&k, K).unwrap(),
        Tensor::new(&v, K).unwrap(),
        TensorMut::new(&mut o, Q).unwrap(),
    )
    .run(&ctx)
    .unwrap();
    assert_eq!(o, typed(&want));
    assert!(want.iter().any(|&bits| bits != 0));
    let ones = vec![half::f16::from_bits(0x3c00); 4];
    let buffer = ctx.upload(&ones).unwrap();
    assert_eq!(buffer.tensor::<half::f16>([4]).unwrap().as_raw().dtype, DType::F16.0);
    let mut back = vec![half::f16::from_bits(0); 4];
    buffer.read(&mut back).unwrap();
    assert_eq!(back, ones);
}

#[test]
fn a_method_by_name_is_its_numbers() {
    use fovea::experimental::{recipe, recipes, XSparseForward};
    let ctx = Context::host().unwrap();
    let (q, k, v) = problem();
    let windows = [2i32, 1, 1].repeat(4);
    let (q, k) = (Tensor::new(&q, Q).unwrap(), Tensor::new(&k, K).unwrap());
    let (v, windows) = (Tensor::new(&v, K).unwrap(), Tensor::new(&windows, [4, 3]).unwrap());
    let (mut named, mut plain, mut heads) = (vec![0f32; 160], vec![0f32; 160], vec![0f32; 160]);
    AttentionForward::new(&q, &k, &v, TensorMut::new(&mut named, Q).unwrap())
        .recipe("streamingllm")
        .unwrap()
        .window_left(2)
        .sink_keys(1)
        .run(&ctx)
        .unwrap();
    AttentionForward::new(&q, &k, &v, TensorMut::new(&mut plain, Q).unwrap())
        .causal(true)
        .window_left(2)
        .sink_keys(1)
        .run(&ctx)
        .unwrap();
    AttentionForward::new(&q, &k, &v, TensorMut::new(&mut heads, Q).unwrap())
        .head_window(&windows)
        .recipe("moa")
        .unwrap()
        .run(&ctx)
        .unwrap();
    assert_eq!(named, plain);
    assert_eq!(named, heads);

    let row = recipe("streamingllm").unwrap();
    assert_eq!((row.operation.as_str(), row.needs.len()), ("attention_forward", 0));
    assert_eq!(row.numbers[1], ("sink_keys".to_string(), "4".to_string()));
    assert!(recipes().unwrap().contains(&row));
    let said = |error: Error| error.text().to_string();
    assert_eq!(
        said(recipe("streaming llm!").unwrap_err()),
        "recipe: there is no 'streaming llm!', wanted streamingllm"
    );
    assert!(said(recipe("a\0b").unwrap_err()).contains("it holds a NUL"));
    let mut o = vec![0f32; 160];
    let mut call = XSparseForward::new(&q, &k, &v, TensorMut::new(&mut o, Q).unwrap());
    assert_eq!(
        said(call.recipe("chai").unwrap_err()),
        "recipe chai: head_map is absent, wanted (b, h) i32"
    );
    assert_eq!(
        said(call.recipe("moa").unwrap_err()),
        "recipe moa: operation is x_sparse_forward, wanted attention_forward or attention_backward"
    );
}
