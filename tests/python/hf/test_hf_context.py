# SPDX-License-Identifier: Apache-2.0
"""A model whose text lies over several ranks trains as on one, within context_parallel."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fovea_distributed"))
import fovea.distributed as fd  # noqa: E402
import fovea.transformers  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from models import by, model  # noqa: E402
from ranks import Ranks  # noqa: E402
from torch.distributed.tensor.experimental import context_parallel  # noqa: E402

TOKENS = 32
STARTS = [0, 5, 19, 32]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, preload=["transformers", "torch.distributed.tensor.experimental"]) as made:
        yield made


def inputs(starts):
    """Tokens, positions and labels of the next token, (1, TOKENS) each."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 90, (1, TOKENS), generator=generator)
    labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    bounds = starts or [0, TOKENS]
    places = torch.cat([torch.arange(b - a) for a, b in zip(bounds, bounds[1:])])[None]
    return ids, places, labels


def loss_and_gradients(made, ids, places, labels):
    made.zero_grad()
    scores = made(ids, position_ids=places, use_cache=False).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(scores, labels.flatten(), reduction="sum")
    loss.backward()
    return [loss.detach(), *[x.grad for x in made.parameters() if x.grad is not None]]


def without_masks(made):
    """What accelerate's prepare does to a model with context parallelism; gives what undoes it."""

    def hook(_module, args, kwargs):
        if "attention_mask" in kwargs:
            kwargs.update(attention_mask=None, is_causal=True)
        return args, kwargs

    hooks = [
        part.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        for name, part in made.named_modules()
        if name.endswith("self_attn")
    ]
    return lambda: [x.remove() for x in hooks]


def mesh_of(group):
    names = {"mesh_dim_names": ("cp",)}
    return dist.device_mesh.DeviceMesh.from_group(group, "cpu", **names)


def trained(group, name, how, starts=None):
    """Largest relative difference of loss and gradients from one process's; whether the buffers are
    whole again."""
    fovea.transformers.register()
    made, _ = model(name)
    whole = inputs(starts)
    want = by(made, "fovea", lambda: loss_and_gradients(made, *whole))
    want = [x.clone() for x in want]
    given = [x.clone() for x in whole]
    mesh = mesh_of(group)
    if how in ("fovea", "checkpoints"):
        context = fd.context_parallel(mesh, buffers=given, query_start=starts)
    else:
        context = context_parallel(mesh, buffers=given, buffer_seq_dims=[1, 1, 1])
    undo = without_masks(made) if how == "accelerate" else lambda: None
    if how == "checkpoints":
        made.gradient_checkpointing_enable()
        made.train()
    with context:
        cut = all(x.shape[1] == TOKENS // dist.get_world_size(group) for x in given)
        got = by(made, "fovea", lambda: loss_and_gradients(made, *given))
    undo()
    if how == "checkpoints":
        made.gradient_checkpointing_disable()
        made.eval()
    for x in got:
        dist.all_reduce(x, group=group)
    off = [float((x - y).abs().max() / y.abs().max().clamp(min=1e-3)) for x, y in zip(got, want)]
    same = all(torch.equal(x, y) for x, y in zip(given, whole))
    return max(off), cut and same and len(got) == len(want)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("how", ["fovea", "PyTorch"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "llama4"])
def test_a_model_over_ranks_is_one_model(ranks, size, how, name):
    for off, good in ranks.run(size, trained, name=name, how=how):
        assert good and off < 2e-4, off


def test_a_model_that_accelerate_prepared(ranks):
    for off, good in ranks.run(4, trained, name="llama", how="accelerate"):
        assert good and off < 2e-4, off


def test_layers_that_are_computed_again(ranks):
    """Gradient checkpointing, whose second forward exchanges too."""
    for off, good in ranks.run(2, trained, name="llama", how="checkpoints"):
        assert good and off < 2e-4, off


@pytest.mark.parametrize("size", [2, 4])
def test_packed_texts_over_ranks(ranks, size):
    for off, good in ranks.run(size, trained, name="llama", how="fovea", starts=STARTS):
        assert good and off < 2e-4, off


def refused(group, name, more):
    fovea.transformers.register()
    made, _ = model(name)
    ids, places, _ = inputs(None)
    more = dict(more)
    if hidden := more.pop("hidden", 0):
        more["attention_mask"] = torch.ones_like(ids)
        more["attention_mask"][:, :hidden] = 0
    square = more.pop("mask", False)
    buffers = [ids, places, *[x for x in more.values() if torch.is_tensor(x)]]
    if square:
        more["attention_mask"] = torch.ones((1, 1, TOKENS // 2, TOKENS // 2), dtype=torch.bool)
    with fd.context_parallel(group, buffers=buffers):
        by(made, "fovea", lambda: made(ids, position_ids=places, **{"use_cache": False, **more}))


REFUSED = {
    "a mask": ("llama", {"mask": True}, "attention_mask is a mask, which is not served within"),
    "padding": ("llama", {"hidden": 3}, "attention_mask hides tokens: pad at the right"),
    "attentions": ("llama", {"output_attentions": True}, "output_attentions is True"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_on_every_rank(ranks, case):
    name, more, sentence = REFUSED[case]
    for good, (_, text, trace) in ranks.outcomes(2, refused, name=name, more=more):
        assert not good and sentence in text, trace


def wrong(group, fields):
    x = torch.zeros(1, 32)
    with fd.context_parallel(group, **fields(x)):
        pass


def two_dims(x):
    return {"buffers": [x], "buffer_seq_dims": [1, 1]}


def a_stranger(x):
    return {"buffers": [x], "no_restore_buffers": [x.clone()]}


def odd(x):
    return {"buffers": [x[:, :31]]}


@pytest.mark.parametrize(
    "fields, sentence",
    [
        (two_dims, "buffer_seq_dims has 2 entries, wanted 1 as buffers"),
        (a_stranger, "no_restore_buffers has a tensor that is not among buffers"),
        (odd, "x has 31 tokens in dimension 1, wanted a multiple of 4"),
    ],
)
def test_wrong_buffers_are_refused(ranks, fields, sentence):
    for good, (kind, text, _) in ranks.outcomes(2, wrong, fields=fields):
        assert not good and kind == "InvalidArgument" and sentence in text
