# SPDX-License-Identifier: Apache-2.0
"""Models by fovea within torch.compile: one graph, the results of the model as it is, and no graph
for each length."""

import functools
import os

import fovea.transformers
import pytest
import torch
import transformers
from functorch.compile import make_boxed_func
from models import SMALL, by, model
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

fovea.transformers.register()
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # as it is, by the same attention
PEER = {"rtol": 2e-4, "atol": 2e-4}  # by sdpa


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    counters.clear()


@functools.lru_cache
def llama():
    """Of one layer, as tracing takes the time."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1})
    return transformers.LlamaForCausalLM._from_config(config, attn_implementation="fovea").eval()


def whole(call, backend="aot_eager", arrays=False):
    """call as one graph, in which no bool array (.., s, t) is made, but where `arrays` says so."""

    def look(graph, inputs):
        for node in graph.graph.nodes:
            x = node.meta.get("val")
            if isinstance(x, torch.Tensor) and x.dtype == torch.bool and x.dim() > 1 and not arrays:
                assert x.shape[-2] == 1 or x.shape[-1] != x.shape[-2], node.format_node()
        return make_boxed_func(graph.forward)

    if backend == "aot_eager":
        backend = aot_autograd(fw_compiler=look, decompositions={})
    return torch.compile(call, backend=backend, fullgraph=True)


def graphs():
    return counters["stats"]["unique_graphs"]


def tokens(b, n):
    return torch.randint(3, 90, (b, n), generator=torch.Generator().manual_seed(5))


def padding(n):
    kept = torch.ones(3, n, dtype=torch.long)
    kept[1, :4] = kept[2, n - 3 :] = kept[2, 4] = 0  # at the left, at the right, a hole
    return kept


def test_lengths_share_a_graph():
    """The second length compiles for all."""
    made = llama()
    compiled = whole(made.forward)
    for n in (21, 17, 30, 9):
        kept = padding(n)
        call = lambda f: f(tokens(3, n), attention_mask=kept, use_cache=False).logits[kept.bool()]
        with torch.no_grad():
            got, want = call(compiled), call(made)
        torch.testing.assert_close(got, want, **CLOSE)
    assert graphs() == 2
    with torch.no_grad():
        want = by(made, "sdpa", lambda: call(made))
    made.set_attn_implementation("fovea")
    torch.testing.assert_close(got, want, **PEER)


def test_training_steps_of_a_marked_length():
    """The first length compiles for all, forward and backward."""
    made = llama()
    compiled = whole(made.forward)
    for n in (21, 14):
        given = {"input_ids": tokens(3, n), "attention_mask": padding(n)}
        given["labels"] = given["input_ids"].masked_fill(padding(n) == 0, -100)
        for x in given.values():
            torch._dynamo.mark_dynamic(x, 1)
        found = []
        for call in (made.forward, compiled):
            made.zero_grad()
            out = call(**given, use_cache=False)
            out.loss.backward()
            found.append({k: x.grad.clone() for k, x in made.named_parameters()})
            found[-1]["logits"] = out.logits.detach()[padding(n).bool()]
        for name, x in found[0].items():
            torch.testing.assert_close(found[1][name], x, **CLOSE, msg=name)
    assert graphs() == 1


def test_activation_checkpointing():
    made, found = llama.__wrapped__().train(), []
    made.gradient_checkpointing_enable()
    for call in (made.forward, whole(made.forward, arrays=True)):
        made.zero_grad()
        call(tokens(3, 21), labels=tokens(3, 21), use_cache=False).loss.backward()
        found.append(made.model.layers[0].self_attn.q_proj.weight.grad.clone())
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_windows_and_softcap():
    made, _ = model("gemma2")
    made.set_attn_implementation("fovea")
    call = lambda f: f(tokens(3, 21), attention_mask=padding(21), use_cache=False).logits
    with torch.no_grad():
        got, want = call(whole(made.forward)), call(made)
    in_use = padding(21).bool()
    torch.testing.assert_close(got[in_use], want[in_use], **CLOSE)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_packed_sequences(name):
    """position_ids say it by an array, cu_seq_lens_q and its companions without one."""
    made = llama() if name == "llama" else model(name)[0]
    made.set_attn_implementation("fovea")
    lengths = (5, 1, 11, 4)
    starts = torch.tensor([0, 5, 6, 17, 21], dtype=torch.int32)
    given = {"position_ids": torch.cat([torch.arange(n) for n in lengths])[None]}
    told = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    with torch.no_grad():
        want = made(tokens(1, 21), **given, use_cache=False).logits
        for more in ({}, told) if name == "llama" else ({},):
            compiled = whole(made.forward, arrays=not more)
            got = compiled(tokens(1, 21), **given, **more, use_cache=False).logits
            torch.testing.assert_close(got, want, **CLOSE)


def test_generate_by_a_compiled_forward():
    """generate() prepares the mask, and each step has the same fields: one graph."""
    made = llama()
    config = transformers.CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    config._compile_all_devices = True  # or transformers compiles on GPUs only
    kept = padding(21)
    kept[2] = 1
    given = {"attention_mask": kept, "max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    given["cache_implementation"] = "static"
    want = made.generate(tokens(3, 21), **given, disable_compile=True)
    got = made.generate(tokens(3, 21), **given, compile_config=config)
    assert torch.equal(got, want) and graphs() == 1


def test_an_engines_own_loop_over_a_static_cache():
    """Prefill as it is, then single tokens by one graph, with a 2-D mask of the cache's width."""
    made = llama()
    x, kept = tokens(3, 19), torch.ones(3, 24, dtype=torch.long)
    kept[1, :4] = kept[2, 2] = 0
    found = []
    for call in (made.forward, whole(made.forward)):
        cache, logits = transformers.StaticCache(config=made.config, max_cache_len=24), []
        with torch.no_grad():
            made(x[:, :13], attention_mask=kept[:, :13], past_key_values=cache)
            for i in range(13, 19):
                step = call(x[:, i : i + 1], attention_mask=kept, past_key_values=cache)
                logits.append(step.logits)
        found.append(torch.cat(logits, 1))
    torch.testing.assert_close(found[1], found[0], **CLOSE)
    assert graphs() == 1


def test_inductor():
    if not os.environ.get("FOVEA_REQUIRE_ALL"):
        pytest.skip("inductor's start takes 15 s and a C++ compiler: set FOVEA_REQUIRE_ALL=1")
    made = llama()
    layer = made.model.layers[0].self_attn
    x = torch.randn(2, 19, 32, requires_grad=True)
    turn = made.model.rotary_emb(x, torch.arange(19)[None])
    found = []
    for call in (layer, whole(layer, "inductor")):
        o = call(x, turn, None)[0]
        found.append((o, torch.autograd.grad(o.square().sum(), x)[0]))
    torch.testing.assert_close(found[1], found[0], **CLOSE)
