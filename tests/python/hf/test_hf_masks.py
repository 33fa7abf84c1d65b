# SPDX-License-Identifier: Apache-2.0
"""What fovea takes for each mask of transformers, what falls back to an array, what is refused."""

import itertools

import fovea.transformers
import pytest
import torch
import transformers
from fovea.transformers import Mask
from models import SMALL, by, model
from transformers import masking_utils

fovea.transformers.register()
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def ids(b=2, n=19):
    return torch.randint(3, 90, (b, n), generator=torch.Generator().manual_seed(5))


def asked(function, s, t, offset, key_offset=0, padding=None, b=2):
    return {
        "batch_size": b, "q_length": s, "kv_length": t, "q_offset": offset,
        "kv_offset": key_offset, "mask_function": function, "attention_mask": padding,
        "device": "cpu", "local_size": None,
    }  # fmt: skip


FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "both ways": masking_utils.bidirectional_mask_function,
    "window 3": masking_utils.sliding_window_causal_mask_function(3),
    "window 50": masking_utils.sliding_window_causal_mask_function(50),
    "reach 2": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunks of 4": lambda left: masking_utils.chunked_causal_mask_function(4, left),
}
SIZES = [(7, 7, 0, 0), (1, 9, 8, 0), (3, 9, 6, 0), (4, 12, 0, 0), (2, 12, 5, 0), (1, 6, 11, 6),
         (3, 8, 9, 4)]  # fmt: skip
PADDINGS = ["", "left", "right", "both", "hole", "empty row"]


def padding_of(kind, length):
    kept = torch.ones(2, length, dtype=torch.bool)
    if kind in ("left", "both"):
        kept[1, :2] = False
    if kind in ("right", "both"):
        kept[0, -1:] = False
    if kind == "hole":
        kept[1, length // 2 + 1] = kept[1, 0] = False
    if kind == "empty row":
        kept[0] = False
    return kept if kind else None


@pytest.mark.parametrize("kind", PADDINGS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lengths_say_what_the_array_says(name, kind):
    """Attention by the fields of a Mask is attention by sdpa_mask's array, in every row that is in
    use."""
    generator = torch.Generator().manual_seed(11)
    served = 0
    for s, t, offset, key_offset in SIZES:
        if name in ("both ways", "reach 2") and offset:
            continue  # transformers gives these no cache
        end = offset + s
        padding = padding_of(kind, end)
        function = FUNCTIONS[name]
        if name.startswith("chunks"):
            kept = torch.ones(2, end) if padding is None else padding
            function = function((kept.cumsum(-1) == 0).sum(-1))
        call = asked(function, s, t, offset, key_offset, padding)
        got = fovea.transformers.mask(**call)
        array = fovea.transformers.explicit(call)
        q, k, v = (torch.randn(2, 2, n, 8, generator=generator) for n in (s, t, t))
        run = lambda m: fovea.transformers.attention(torch.nn.Module(), q, k, v, m)[0]
        o, want = run(got), run(array)
        if isinstance(got, Mask):
            served += 1
            assert got.shape == array.shape and torch.equal(got[:], array)
            assert not {"mask", "bias"} & got.fields.keys()
        in_use = torch.ones(2, s, dtype=torch.bool) if padding is None else padding[:, offset:end]
        torch.testing.assert_close(o[in_use], want[in_use], rtol=1e-5, atol=1e-5)
    if kind != "hole":
        assert served >= 1 if name.startswith(("chunks", "reach")) else served >= 2


def test_which_fields():
    make = lambda *x, **k: fovea.transformers.mask(**asked(*x, **k))
    kept = torch.ones(2, 6, dtype=torch.bool)
    kept[1, :2] = False
    fields = make(FUNCTIONS["window 3"], 6, 6, 0, padding=kept).fields
    assert fields["causal"] and fields["window_left"] == 3
    assert fields["key_first"].tolist() == [0, 2] and fields["key_first"].dtype == torch.int32
    assert "key_len" not in fields and "query_len" not in fields
    fields = make(FUNCTIONS["causal"], 6, 6, 0, padding=kept.flip(1)).fields
    assert fields["key_len"].tolist() == fields["query_len"].tolist() == [6, 4]
    fields = make(FUNCTIONS["causal"], 1, 16, 9).fields  # a static cache of 16
    assert fields["key_len"].tolist() == [10, 10] and fields.keys() == {"causal", "key_len"}
    assert make(FUNCTIONS["window 50"], 6, 6, 0).fields == {"causal": True}
    kept[1, 4] = False  # a hole
    assert type(make(FUNCTIONS["causal"], 6, 6, 0, padding=kept)) is torch.Tensor


def test_functions_of_the_caller_become_arrays():
    made, reference = model("llama")
    image = lambda batch, head, q, k: (q < 6) & (k < 6)
    functions = masking_utils.or_masks(masking_utils.causal_mask_function, image)
    assert fovea.transformers.pattern(functions) is None
    assert fovea.transformers.pattern(lambda *x: x[3] <= x[2]) is None
    got = fovea.transformers.mask(**asked(functions, 9, 9, 0), use_vmap=True)
    assert type(got) is torch.Tensor and got[0, 0, 2, 5] and not got[0, 0, 7, 8]


def test_holes_four_dimensions_and_numbers():
    made, reference = model("llama")
    x = ids()
    holes = torch.ones(2, 19, dtype=torch.long)
    holes[0, 3:5] = holes[1, 0] = 0
    tree = torch.rand(2, 1, 19, 19, generator=torch.Generator().manual_seed(1)) < 0.5
    tree |= torch.eye(19, dtype=torch.bool)
    numbers = torch.zeros(tree.shape).masked_fill(~tree, torch.finfo(torch.float32).min)
    for given in (holes, tree, numbers):
        with torch.no_grad():
            call = lambda: made(x, attention_mask=given).logits
            got, want = by(made, "fovea", call), by(made, reference, call)
        rows = holes.bool() if given is holes else torch.ones_like(holes).bool()
        torch.testing.assert_close(got[rows], want[rows], **CLOSE)


def test_lengths_of_flash_attention():
    """cu_seq_lens_q and its companions, as DataCollatorWithFlattening gives them."""
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    rows = [{"input_ids": x.tolist()} for x in (*ids()[0].split((9, 4, 6)), ids()[1])]
    batch = collate(rows)
    assert {"cu_seq_lens_q", "max_length_k", "position_ids"} <= batch.keys()
    for name in ("llama", "mistral"):
        made, reference = model(name)
        losses = []
        for implementation in ("fovea", reference):
            loss = by(made, implementation, lambda: made(**batch, use_cache=False).loss)
            losses.append(float(loss.detach()))
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        without = {k: v for k, v in batch.items() if k != "position_ids"}
        with torch.no_grad():  # the lengths alone divide the rows too
            rope = {"position_ids": batch["position_ids"]}
            want = by(made, "fovea", lambda: made.model(**rope, input_ids=batch["input_ids"]))
            layer = made.model.layers[0].self_attn
            x = torch.randn(1, 38, SMALL["hidden_size"])
            turn = made.model.rotary_emb(x, batch["position_ids"])
            lengths = {k: v for k, v in without.items() if "length" in k or "lens" in k}
            got = layer(x, turn, None, **lengths)[0]
            alone = torch.cat([
                layer(y, tuple(z[:, a : a + y.shape[1]] for z in turn), None)[0]
                for y, a in zip(x.split((9, 4, 6, 19), 1), (0, 9, 13, 19))
            ], 1)  # fmt: skip
        torch.testing.assert_close(got, alone, rtol=1e-5, atol=1e-5)
        assert want.last_hidden_state.isfinite().all()


def test_packed_batches_and_padding_beside_lengths():
    made, reference = model("qwen2")
    places = torch.stack([
        torch.cat([torch.arange(n) for n in lengths]) for lengths in ((9, 10), (3, 12, 4))
    ])  # fmt: skip
    with torch.no_grad():
        call = lambda: made(ids(), position_ids=places, use_cache=False).logits
        torch.testing.assert_close(by(made, "fovea", call), by(made, reference, call), **CLOSE)
    start = torch.tensor([0, 9, 38])
    lengths = {"cu_seq_lens_q": start, "cu_seq_lens_k": start}
    lengths |= {"max_length_q": 29, "max_length_k": 29}
    kept = torch.ones(2, 19, dtype=torch.long)
    kept[0, 0] = 0
    with pytest.raises(ValueError, match="cu_seq_lens_q is given beside key_first"):
        by(made, "fovea", lambda: made(ids(), attention_mask=kept, **lengths))


def test_a_conversation_goes_on_in_its_cache():
    """Several tokens behind a cache, dynamic and static, longer than the window."""
    for name, static in itertools.product(("mistral", "gemma2", "llama4"), (False, True)):
        made, reference = model(name)

        def talk():
            cache = transformers.DynamicCache(config=made.config)
            if static:
                cache = transformers.StaticCache(config=made.config, max_cache_len=32)
            turns = ids(2, 28).split((13, 1, 9, 5), 1)
            return torch.cat([made(x, past_key_values=cache).logits for x in turns], 1)

        with torch.no_grad():
            torch.testing.assert_close(by(made, "fovea", talk), by(made, reference, talk), **CLOSE)


def test_encoders_and_cross_attention():
    """Both ways, with windows to both sides (ModernBERT), position_bias and cross attention (T5)."""
    kept = torch.ones(2, 19, dtype=torch.long)
    kept[0, 14:] = 0
    torch.manual_seed(3)
    common = {"vocab_size": 96, "pad_token_id": 0, "num_attention_heads": 4, "hidden_size": 32}
    bert = transformers.ModernBertConfig(
        **common, intermediate_size=48, num_hidden_layers=3, local_attention=8,
        global_attn_every_n_layers=2, initializer_range=0.3, cls_token_id=1, sep_token_id=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    made = transformers.ModernBertModel._from_config(bert, attn_implementation="sdpa").eval()
    with torch.no_grad():
        call = lambda: made(ids(), attention_mask=kept).last_hidden_state
        got, want = by(made, "fovea", call), by(made, "sdpa", call)
    torch.testing.assert_close(got[kept.bool()], want[kept.bool()], **CLOSE)
    t5 = transformers.T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    made = transformers.T5ForConditionalGeneration._from_config(t5, attn_implementation="eager")
    with torch.no_grad():
        for x in made.parameters():
            if x.dim() > 1:
                x.normal_(0, 0.3)

    def gradients():
        made.zero_grad()
        made.train()
        loss = made(ids(), attention_mask=kept, labels=ids(2, 11)).loss
        loss.backward()
        made.eval()
        bias = made.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad
        return loss.detach(), bias.clone()

    got, want = by(made, "fovea", gradients), by(made, "eager", gradients)
    torch.testing.assert_close(got[0], want[0], **CLOSE)
    torch.testing.assert_close(got[1], want[1], rtol=2e-3, atol=2e-4)
    call = lambda: made.generate(ids(), attention_mask=kept, max_new_tokens=6, do_sample=False)
    assert torch.equal(by(made, "fovea", call), by(made, "eager", call))


def test_autocast_and_16_bit():
    made, reference = model("llama")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        call = lambda: made(ids()).logits.float()
        got, want = by(made, "fovea", call), by(made, reference, call)
    assert (got - want).abs().max() < 0.05 * want.abs().max()
    half = made.__class__(made.config).to(torch.bfloat16).eval()
    with torch.no_grad():
        call = lambda: half(ids()).logits.float()
        got, want = by(half, "fovea", call), by(half, reference, call)
    assert (got - want).abs().max() < 0.05 * want.abs().max()


def test_gradient_checkpointing():
    made, _ = model("llama")

    def gradient():
        made.zero_grad()
        made(ids(), labels=ids(), use_cache=False).loss.backward()
        return made.model.layers[0].self_attn.q_proj.weight.grad.clone()

    want = by(made, "fovea", gradient)
    made.gradient_checkpointing_enable()
    made.train()
    try:
        got = by(made, "fovea", gradient)
    finally:
        made.gradient_checkpointing_disable()
        made.eval()
    torch.testing.assert_close(got, want)


def test_refusals():
    config = transformers.LlamaConfig(**{**SMALL, "attention_dropout": 0.1})
    made = transformers.LlamaForCausalLM._from_config(config, attn_implementation="fovea")
    made.eval()
    made(ids())  # no dropout outside of training
    with pytest.raises(ValueError, match='"fovea": dropout is 0.1 in training, wanted 0'):
        made.train()(ids())
    made.eval()
    with pytest.raises(ValueError, match="output_attentions is True"):
        made(ids(), output_attentions=True)
    x = torch.zeros(1, 2, 3, 8)
    run = lambda mask=None, **more: fovea.transformers.attention(made, x, x, x, mask, **more)
    for name in ("head_mask", "layer_head_mask", "cache", "block_table", "block_indices"):
        with pytest.raises(ValueError, match=f"{name} is a.*not served.*eager"):
            run(**{name: x})
    with pytest.raises(ValueError, match=r"attention_mask is of shape \(1, 3\), wanted \(b, h"):
        run(torch.ones(1, 3))
    start = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match="position_bias is given with packed"):
        run(cu_seq_lens_q=start, cu_seq_lens_k=start, position_bias=torch.zeros(1, 2, 3, 3))
    with pytest.raises(TypeError, match="q has dtype float64"):
        x = x.double()
        run()


def test_registering(monkeypatch):
    assert "fovea" in transformers.AttentionInterface().valid_keys()
    fovea.transformers.register()
    fovea.transformers.register("other")
    assert "other" in transformers.AttentionInterface().valid_keys()
    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda batch_size: None)
    with pytest.raises(ImportError, match="transformers is .*, wanted transformers 5"):
        fovea.transformers.register()
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match="fovea.transformers: wanted transformers"):
        fovea.transformers.register()
