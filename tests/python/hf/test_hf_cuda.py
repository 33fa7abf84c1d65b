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
