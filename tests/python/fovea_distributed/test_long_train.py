# SPDX-License-Identifier: Apache-2.0
"""examples/python/long_train.py: two processes take the steps of one, and write what it writes."""

import argparse
import pathlib
import re
import sys

import fovea.torch
import numpy as np
import pytest
import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import long_train  # noqa: E402
from smollm import model  # noqa: E402
from smollm.torch_model import TorchModel  # noqa: E402


def test_two_processes_are_as_one(ranks, capsys):
    """`ranks` has begun what the program's processes are forked from."""
    options = "--model bytes --tokens 512 --steps 3 --prompt 64 --write 4 --device cpu"
    long_train.main(options.split())
    told = capsys.readouterr().out
    losses = [float(x) for x in re.findall(r"loss (\S+) by one process", told)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    off = re.search(r"^largest difference (\S+) nats$", told, re.M)
    assert float(off[1]) < 1e-5
    speeds = r"^tokens/s: \d+ by one process, \d+ by 2; MiB: \d+ of one, \[\d+, \d+\] of ranks$"
    assert re.search(speeds, told, re.M) and "written by one process and by 2: " in told


def tiny():
    """A decoder of SmolLM2's kind with random weights."""
    random = np.random.default_rng(3)
    config = model.Config(2, 4, 2, 8, 10000.0, 1e-5, 256)

    def floats(*shape):
        return random.normal(0, 0.2, shape).astype(np.float32)

    layers = [
        model.Layer(floats(32) + 1, floats(64, 32), floats(32, 32), floats(32) + 1,
                    floats(96, 32), floats(32, 48))  # fmt: skip
        for _ in range(2)
    ]
    return model.Model(config, floats(90, 32), layers, floats(32) + 1)


class Plain:
    """Causal attention in float64 of a text by itself, with rope of neighbouring columns."""

    def extend(self, n):
        turns = np.arange(n)[:, None, None] * 10000.0 ** -(np.arange(4) / 4)
        self.turns = np.exp(1j * turns)

    def attend(self, layer, q, k, v):
        q, k = [(x.astype(np.float64).view(np.complex128) * self.turns).view(np.float64) for x in (q, k)]
        k, v = k.repeat(2, 1), v.repeat(2, 1)
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(8)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        o = np.einsum("hst,thd->shd", p / p.sum(-1, keepdims=True), v)
        return o.astype(np.float32)


def tokens(n):
    return np.random.default_rng(4).integers(0, 90, n).tolist()


def test_the_module_is_the_decoder_of_smollm():
    attend = lambda _, q, k, v: fovea.torch.attention(q, k, v, causal=True)
    text = tokens(24)
    with torch.no_grad():
        got = TorchModel(tiny())(torch.tensor([text]), torch.arange(24), attend)[0].numpy()
    want = tiny().forward(text, Plain(), every=True)
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def trained(group):
    """Losses, what is written, and how the weights moved."""
    device = torch.get_default_device()
    made, text = TorchModel(tiny()).to(device), long_train.Text(tokens(65), [0, 11, 40, 64])
    args = argparse.Namespace(steps=3, rate=1e-2, write=5, dtype="float32")
    losses = long_train.train(made, text, args, group, device)
    written = long_train.write(made, torch.tensor([text.tokens[:32]]), args, group)
    return losses, written


def test_words_over_ranks(ranks):
    one = ranks.run(1, trained)[0]
    assert one[0][-1] < one[0][0] and len(one[1]) == 5
    for size in (2, 4):
        for losses, written in ranks.run(size, trained):
            assert losses == pytest.approx(one[0], abs=1e-5) and written == one[1]


def test_paragraphs_are_packed(tmp_path):
    file = tmp_path / "text"
    file.write_text("\n\n".join(f"{n} lines of a text about {n}" for n in range(40)))
    args = argparse.Namespace(text=file, model="bytes", tokens=512)
    text = long_train.read(args)
    assert bytes(text.tokens) == file.read_bytes()[:513]
    assert text.starts[0] == 0 and text.starts[-1] == 512 and len(text.starts) > 4
    assert all(bytes(text.tokens[a - 2 : a]) == b"\n\n" for a in text.starts[1:-1])


def test_what_cannot_be_done_is_said(monkeypatch, capsys):
    monkeypatch.setattr(long_train, "absent", lambda: ["gguf"])
    for wrong, told in (
        (["--tokens", "510"], "--tokens is 510, wanted a multiple of 4 for 2 ranks"),
        (["--prompt", "8192"], "--prompt is 8192, wanted at most --tokens 4096"),
        (["--model", "smollm"], "--model smollm: gguf not installed"),
        (["--device", "cuda", "--ranks", "512"], "GPUs, wanted 512"),
    ):
        with pytest.raises(SystemExit):
            long_train.main(wrong)
        assert told in capsys.readouterr().err
