# SPDX-License-Identifier: Apache-2.0
"""The architectures on a GPU: f32 equal to sdpa or eager, bf16 as near to f32 as those are."""

import copy

import fovea
import fovea.torch
import fovea.transformers
import pytest
import torch
import transformers
from models import SMALL, TABLE, by, model
from test_hf_models import CLOSE, LENGTH, NEW, loss_and_gradients, padding, tokens

fovea.transformers.register()
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and fovea.device_count("cuda")), reason="needs a CUDA device"
)


@pytest.fixture(params=TABLE)
def pair(request):
    made, reference = model(request.param)
    return copy.deepcopy(made).cuda(), reference


def test_loss_gradients_and_tokens(pair):
    made, reference = pair
    ids, kept = tokens().cuda(), padding("right").cuda()
    inputs = {
        "input_ids": ids, "attention_mask": kept, "labels": ids.masked_fill(kept == 0, -100),
        "use_cache": False,
    }  # fmt: skip
    got, want = (
        by(made, name, lambda: loss_and_gradients(made, **inputs)) for name in ("fovea", reference)
    )
    torch.testing.assert_close(got[0], want[0], **CLOSE)
    for name, x in want[1].items():
        limit = 2e-4 * float(x.abs().max()) + 1e-6
        torch.testing.assert_close(got[1][name], x, rtol=0, atol=limit, msg=name)
    call = lambda: made.generate(
        ids, attention_mask=padding("left").cuda(), max_new_tokens=NEW, min_new_tokens=NEW,
        do_sample=False, disable_compile=True,
    )  # fmt: skip
    found, wanted = by(made, "fovea", call), by(made, reference, call)
    assert found.shape == (3, LENGTH + NEW) and torch.equal(found, wanted)


def test_bf16_is_as_near_to_f32_as_the_other_implementation(pair):
    made, reference = pair
    ids, kept = tokens().cuda(), padding("left").cuda()
    call = lambda: made(ids, attention_mask=kept).logits[kept.bool()].double()
    with torch.no_grad():
        exact = by(made, reference, call)
        made.bfloat16()
        off, other = ((by(made, name, call) - exact).norm() for name in ("fovea", reference))
    assert 0 < off < 1.5 * other


def test_heads_of_64_run_on_the_tensor_cores():
    config = transformers.LlamaConfig(**{**SMALL, "head_dim": 64})
    torch.manual_seed(3)
    made = transformers.LlamaForCausalLM(config).bfloat16().cuda().eval()
    ids = torch.randint(3, 90, (2, 128), device="cuda")
    with torch.no_grad():
        got, want = (by(made, name, lambda: made(ids).logits) for name in ("fovea", "sdpa"))
    assert (got - want).norm() < 2e-2 * want.norm()
    kernel = fovea.torch.context(torch.device("cuda", 0)).last_kernel
    major = torch.cuda.get_device_capability()[0]
    assert (".sm90." if major == 9 else ".sm80.") in kernel, kernel


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_in_half_precision(cache):
    """With a static cache transformers compiles the model into CUDA graphs by itself.  Roundings
    turn ties of tokens, so each token is held to the exact logits of what stands before it."""
    config = transformers.LlamaConfig(**{**SMALL, "head_dim": 64, "initializer_range": 0.5})
    torch.manual_seed(3)
    made = transformers.LlamaForCausalLM(config).half().cuda().eval()
    ids, kept = tokens().cuda(), padding("left").cuda()
    torch._dynamo.reset()
    found = by(made, "fovea", lambda: made.generate(
        ids, attention_mask=kept, max_new_tokens=40, min_new_tokens=40, do_sample=False,
        cache_implementation=cache, pad_token_id=0,
    ))  # fmt: skip
    assert found.shape == (3, LENGTH + 40) and torch.equal(found[:, :LENGTH], ids)
    seen = torch.cat((kept, kept.new_ones(3, 40)), 1)
    with torch.no_grad():
        exact = by(made.float(), "sdpa", lambda: made(found, attention_mask=seen).logits)
    exact, chosen = exact[:, LENGTH - 1 : -1], found[:, LENGTH:]
    exact[..., config.eos_token_id] = -torch.inf  # min_new_tokens
    below = exact.amax(-1) - exact.gather(-1, chosen[..., None])[..., 0]
    assert below.max() < 0.02 * exact[exact.isfinite()].std(), below.max()


def off(x, y):
    return float((x.float() - y.float()).norm() / y.float().norm())


def wide():
    """Heads of 64 in bf16, with padding at the left."""
    config = transformers.LlamaConfig(**{**SMALL, "head_dim": 64, "max_position_embeddings": 512})
    torch.manual_seed(3)
    made = transformers.LlamaForCausalLM(config).bfloat16().cuda().eval()
    made.generation_config.pad_token_id = 0
    kept = torch.ones(2, 200, dtype=torch.long, device="cuda")
    kept[1, :37] = 0
    return made, torch.randint(3, 90, (2, 200), device="cuda"), kept


@pytest.mark.parametrize("method", fovea.transformers.METHODS)
def test_few_bits(method):
    made, ids, kept = wide()
    with torch.no_grad():
        call = lambda: made(ids, attention_mask=kept, use_cache=False).logits[kept.bool()]
        want, got, again = (by(made, x, call) for x in ("fovea", *[f"fovea:{method}"] * 2))
    name = fovea.torch.context(ids.device).last_kernel
    assert torch.equal(got, again) and 1e-4 < off(got, want) < 0.6
    if torch.cuda.get_device_capability()[0] == 9 and method in ("sage2", "sage2pp", "fa3_fp8"):
        assert "sm90" in name.rpartition("+")[2], name


@pytest.mark.parametrize("recipe", ["kivi2", "kivi4", "kvarn"])
def test_generate_on_few_bits(recipe):
    made, ids, kept = wide()
    made.set_attn_implementation("fovea")

    def call(**more):
        cache = fovea.transformers.QuantisedCache(recipe, **more) if more else None
        return made.generate(
            ids, attention_mask=kept, max_new_tokens=9, min_new_tokens=9, do_sample=False,
            past_key_values=cache, return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip

    want, whole, got, again = call(), call(residual=256), *(call(group=32, residual=32) for _ in "12")
    assert "x_kv_decode" in fovea.torch.context(ids.device).last_kernel
    assert all(map(torch.equal, got.logits, again.logits))
    assert off(whole.logits[1], want.logits[1]) < 5e-2  # all of it in 16 bits
    assert 1e-4 < off(got.logits[1], want.logits[1]) < 1
