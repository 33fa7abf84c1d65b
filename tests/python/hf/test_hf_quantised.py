# SPDX-License-Identifier: Apache-2.0
""""fovea:<method>" and QuantisedCache: near the model as it is, each sequence as if alone, the same
tokens every run, and refusals in sentences."""

import functools
import types

import fovea
import fovea.torch
import fovea.transformers
import pytest
import torch
import transformers
from models import SMALL, by, model

fovea.transformers.register()
WIDE = {**SMALL, "head_dim": 32, "max_position_embeddings": 1024}
# Relative error of the logits of two layers of large random weights.
LIMITS = {"fa3_fp8": 0.2, "sage2": 0.12, "sage2pp": 0.12, "sage2_int4": 0.6, "sage3": 0.6,
          "sagebwd": 0.1}  # fmt: skip
LEFT = (0, 20, 77)  # tokens of padding
REFUSED = {"softcap": 30.0, "position_bias": torch.zeros(1, 4, 5, 5)}


@functools.lru_cache
def llama(layers=2):
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**{**WIDE, "num_hidden_layers": layers})
    made = transformers.LlamaForCausalLM._from_config(config, attn_implementation="fovea")
    made.generation_config.pad_token_id = 0
    return made.eval()


def tokens(n=150, b=3):
    return torch.randint(3, 90, (b, n), generator=torch.Generator().manual_seed(5))


def padding(n=150):
    kept = torch.ones(3, n, dtype=torch.long)
    for row, less in enumerate(LEFT):
        kept[row, :less] = 0
    return kept


def off(x, y):
    return float((x - y).norm() / y.norm())


def test_every_method_is_registered():
    names = transformers.AttentionInterface().valid_keys()
    assert all(f"fovea:{method}" in names for method in fovea.transformers.METHODS)
    methods = {r.name for r in fovea.recipes() if r.operation == "x_quantised_forward"}
    assert methods < set(fovea.transformers.METHODS)
    fovea.transformers.register("mine")
    assert "mine:sage2" in transformers.AttentionInterface().valid_keys()


@pytest.mark.parametrize("name", LIMITS)
def test_logits(name):
    made, kept = llama(), padding()
    call = lambda: made(tokens(), attention_mask=kept, use_cache=False).logits[kept.bool()]
    with torch.no_grad():
        got, again, want = (by(made, x, call) for x in (f"fovea:{name}", f"fovea:{name}", "sdpa"))
    assert torch.equal(got, again) and 1e-3 < off(got, want) < LIMITS[name]


def test_16_bits_and_sage():
    made = llama.__wrapped__().bfloat16()
    with torch.no_grad():
        got, want = (by(made, x, lambda: made(tokens()).logits.float()) for x in ("fovea:sage", "fovea"))
    assert 1e-3 < off(got, want) < 0.12


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt_oss"])
def test_windows_softcap_and_sinks(name):
    """fa3_fp8 takes heads of 8, as these models have."""
    made, reference = model(name)
    with torch.no_grad():
        call = lambda: made(tokens(21)).logits
        got, want = by(made, "fovea:fa3_fp8", call), by(made, reference, call)
    assert off(got, want) < 0.3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["sage2", "sage3", "fa3_fp8"])
def test_a_padded_sequence_is_that_alone(name, causal):
    """At both ends, and with a window."""
    make = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(3, h, 60, 32, generator=make) for h in (4, 2, 2))
    first, last = torch.tensor([0, 7, 13]), torch.tensor([60, 60, 41])
    fields = {"causal": causal, "window_left": 30} if causal else {}
    lengths = {"key_first": first, "key_len": last}
    if causal:
        lengths["query_len"] = last
    mask = fovea.transformers.Mask((3, 1, 60, 60), {**fields, **lengths}, None)
    module = types.SimpleNamespace(is_causal=causal)
    o, _ = fovea.transformers.attention(module, q, k, v, mask, recipe=name)
    for row, (a, z) in enumerate(zip(first.tolist(), last.tolist())):
        cut = slice(a, z) if causal else slice(0, 60)
        x, y, w = (x[row : row + 1].transpose(1, 2) for x in (q, k, v))
        want = fovea.torch.quantised_attention(x[:, cut], y[:, a:z], w[:, a:z], name, **fields)
        assert torch.equal(o[row, cut], want[0])
        assert not causal or not o[row, :a].any() and not o[row, z:].any()


def test_packed_sequences():
    made, lengths = llama(), (30, 1, 59, 10)
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    starts = torch.tensor([0, 30, 31, 90, 100], dtype=torch.int32)
    told = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    seen, attention = [], fovea.torch.quantised_attention

    def spy(*xs, **more):
        seen.append(more["query_start"].tolist())
        return attention(*xs, **more)

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fovea.torch, "quantised_attention", spy)
        call = lambda **more: made(tokens(100, 1), position_ids=places, use_cache=False, **more).logits
        got = [by(made, "fovea:sage2", lambda more=more: call(**more)) for more in ({}, told)]
    assert torch.equal(*got) and seen == [starts.tolist()] * 4


def test_compiled():
    """A graph knows no values: packed sequences are told by their starts."""
    torch._dynamo.reset()
    made = llama(1)
    starts = torch.tensor([0, 30, 100], dtype=torch.int32)
    told = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 70, "max_length_k": 70}
    places = torch.cat([torch.arange(30), torch.arange(70)])[None]
    made.set_attn_implementation("fovea:sage2")
    call = lambda f, **more: f(tokens(100, 1), position_ids=places, use_cache=False, **more).logits
    compiled = torch.compile(made.forward, backend="aot_eager", fullgraph=True)
    try:
        with torch.no_grad():
            assert off(call(compiled, **told), call(made, **told)) < 2e-2
            with pytest.raises(Exception, match="a mask that is no padding at the ends is not served"):
                call(compiled)
    finally:
        made.set_attn_implementation("fovea")


def generate(made, cache, n=60, **more):
    more = {"attention_mask": padding(), "do_sample": False, **more}
    made.set_attn_implementation("fovea")
    return made.generate(
        tokens(), past_key_values=cache, max_new_tokens=n, min_new_tokens=n,
        return_dict_in_generate=True, output_logits=True, **more,
    )  # fmt: skip


def quantised(recipe="kivi2", **more):
    return fovea.transformers.QuantisedCache(recipe, **more)


def dynamic(made):
    return transformers.DynamicCache(config=made.config)


def test_generate_on_2_bits():
    """The first token is that of the prompt in 16 bits; later ones come from codes, 4 bits nearer."""
    made = llama()
    want = generate(made, dynamic(made), n=8)
    far = {}
    for recipe in ("kivi2", "kvarn", "kivi4"):
        cache = quantised(recipe, group=32, residual=32)
        got = generate(made, cache, n=8)
        again = generate(made, quantised(recipe, group=32, residual=32), n=8)
        assert all(map(torch.equal, got.logits, again.logits))
        assert torch.equal(got.logits[0], want.logits[0])
        assert torch.equal(got.sequences[:, :151], want.sequences[:, :151])
        far[recipe] = off(got.logits[1], want.logits[1])
        assert cache.get_seq_length() == 157 and len(cache) == 2
        assert cache.layers[0].cache.lengths.tolist() == [157 - n for n in LEFT]
        assert (cache.layers[1].cache.counter[0, 1:3] > 96).all()  # in codes
    assert 0.01 < 2 * far["kivi4"] < far["kivi2"] < 1
    assert far["kivi4"] < far["kvarn"] < 1
    assert cache.bytes_a_token == 2 * 2 * 2 * 32 * 5 // 8 < cache.nbytes


def test_tokens_in_16_bits_are_the_models():
    """All of the text within `residual`: greedy, beams, and a padded sequence alone."""
    made = llama()
    for more in ({}, {"num_beams": 3, "output_scores": True}):
        got, want = (generate(made, x, n=9, **more) for x in (quantised(residual=256), dynamic(made)))
        assert torch.equal(got.sequences, want.sequences)
        if more:
            torch.testing.assert_close(got.sequences_scores, want.sequences_scores, rtol=0, atol=2e-3)
        else:
            assert off(torch.stack(got.logits), torch.stack(want.logits)) < 1e-2
    whole = generate(made, quantised(residual=64), n=40).logits
    alone = made.generate(
        tokens()[2:, 77:], past_key_values=quantised(residual=64), do_sample=False,
        max_new_tokens=40, min_new_tokens=40, return_dict_in_generate=True, output_logits=True,
    ).logits  # fmt: skip
    assert off(whole[30][2], alone[30][0]) < 5e-2


def test_tokens_are_taken_back():
    """Prompt lookup guesses tokens and crops what was wrong."""
    made, ids = llama(), tokens(60, 1)
    made.set_attn_implementation("fovea")
    numbers = {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": False}
    want = made.generate(ids, **numbers)
    got = made.generate(ids, past_key_values=quantised(residual=256), prompt_lookup_num_tokens=3, **numbers)
    assert torch.equal(got, want)


def test_windows():
    torch.manual_seed(7)
    config = transformers.MistralConfig(**{**WIDE, "sliding_window": 40})
    made = transformers.MistralForCausalLM._from_config(config, attn_implementation="fovea").eval()
    made.generation_config.pad_token_id = 0
    got, want = (generate(made, x, n=9) for x in (quantised(residual=256), dynamic(made)))
    assert off(torch.stack(got.logits), torch.stack(want.logits)) < 1e-2


def test_a_conversation_goes_on():
    """Prompts in chunks, and in turns; then the last turn is taken back."""
    made, ids = llama(), tokens(150, 2)
    made.set_attn_implementation("fovea")

    def talk(cache):
        turns = ids.split((60, 1, 80, 9), 1)
        with torch.no_grad():
            logits = torch.cat([made(x, past_key_values=cache).logits for x in turns], 1)
            cache.crop(-9)
            again = made(turns[-1], past_key_values=cache).logits
        assert off(again, logits[:, -9:]) < 1e-3
        return logits

    want = talk(dynamic(made))
    assert off(talk(quantised(residual=160)), want) < 1e-2
    cache = quantised("kivi4", residual=32)
    assert 1e-3 < off(talk(cache), want) < 0.4
    assert cache.get_seq_length() == 150
    cache.reset()
    assert cache.get_seq_length() == 0
    with torch.no_grad():
        assert torch.equal(made(ids, past_key_values=cache).logits, made(ids).logits)


def test_a_method_and_a_cache():
    """The prompt by the method, later tokens by the cache."""
    made = llama()
    made.set_attn_implementation("fovea:sage2")
    with torch.no_grad():
        cache = quantised(residual=256)
        got = made(tokens(), past_key_values=cache).logits
        assert torch.equal(got, made(tokens(), use_cache=False).logits)
        step = made(tokens(1), past_key_values=cache).logits
        made.set_attn_implementation("fovea")
        assert off(step, made(torch.cat([tokens(), tokens(1)], 1)).logits[:, -1:]) < 0.12


def test_refusals():
    made = llama()
    for wrong in ("fovea:sage9", "fovea:kivi2"):
        with pytest.raises(ValueError, match=f'is "{wrong}", wanted one of fovea, fovea:fa3_fp8, fo'):
            made.set_attn_implementation(wrong)
    with pytest.raises(ValueError, match="wanted one of fovea, fovea:fa3_fp8"):
        transformers.LlamaForCausalLM._from_config(made.config, attn_implementation="fovea:sage9")
    with pytest.raises(ValueError, match="sdpa9"):  # transformers' own
        made.set_attn_implementation("sdpa9")
    made.set_attn_implementation("fovea:sage2")
    with pytest.raises(fovea.InvalidArgument, match="q requires grad, but this operation gives it no"):
        made(tokens(9))
    kept = padding()
    kept[0, 40] = 0
    with torch.no_grad():
        with pytest.raises(ValueError, match="fovea:sageattention2 with a mask that is no padding at "
                           "the ends is not served: load the model"):  # fmt: skip
            made(tokens(), attention_mask=kept)
        made.set_attn_implementation("fovea")
        with pytest.raises(ValueError, match="QuantisedCache with a mask that is no padding at the"):
            made(tokens(), attention_mask=kept, past_key_values=quantised())
        for other in ("sdpa", "eager"):
            made.set_attn_implementation(other)
            with pytest.raises(RuntimeError, match="codes that only fovea's attention reads: load the"):
                made(tokens(), past_key_values=quantised())
    made.set_attn_implementation("fovea")
    with pytest.raises(ValueError, match="recipe 'kivi3' is not served: wanted one of kivi2, kivi4, kvarn"):
        quantised("kivi3")
    with pytest.raises(TypeError, match="there is no bits, wanted group, residual, page or capacity"):
        quantised(bits=3)
    x = torch.zeros(1, 2, 5, 32)
    for name, value in REFUSED.items():
        held, _ = quantised().update(x, x, 0)
        with pytest.raises(ValueError, match="QuantisedCache with (softcap|bias) is not served"):
            fovea.transformers.attention(made, x, held, held, None, **{name: value})
    with pytest.raises(ValueError, match="fovea:sageattention2 with bias is not served"):
        fovea.transformers.attention(
            made, x, x, x, None, recipe="sage2", position_bias=torch.zeros(1, 2, 5, 5)
        )
