# SPDX-License-Identifier: Apache-2.0
"""finetune.py and distill_torch.py on tiny models: they learn, on the curves of their peers."""

import argparse
import pathlib
import sys
import types

import pytest

pytest.importorskip("matplotlib", reason="matplotlib not installed: pip install matplotlib")
pytest.importorskip("tokenizers", reason="tokenizers not installed: pip install tokenizers")
pytest.importorskip("gguf", reason="gguf not installed: pip install gguf")
import torch
import transformers
from models import SMALL

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import distill_torch  # noqa: E402
import finetune  # noqa: E402


class Letters:
    """A tokenizer of bytes."""

    def encode(self, text):
        return argparse.Namespace(ids=[3 + byte % 90 for byte in text.encode()])

    def decode(self, ids):
        return " ".join(map(str, ids))


@pytest.fixture
def tiny():
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{**SMALL, "eos_token_id": 2, "initializer_range": 0.1})
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "text"
    file.write_text("\n\n".join(f"{n} lines of a text about {n}" for n in range(40)))
    return finetune.pack(finetune.pieces(file, Letters(), 64), 12, 64, 1)


def test_packed_rows(rows):
    assert len(rows) == 12 and any(count > 2 for *_, count in rows)
    for ids, places, count in rows:
        assert ids.shape == places.shape == (1, 64)
        assert int((places == 0).sum()) == count and places[0, 0] == 0
        assert set(places.diff()[places[:, 1:] > 0].tolist()) == {1}


def test_fine_tuning_is_that_of_sdpa(tiny, rows, tmp_path):
    finetune.fovea.transformers.register()
    trainer = finetune.Trainer.__new__(finetune.Trainer)
    trainer.args = argparse.Namespace(
        device="cpu", rate=3e-3, prompt="lines", generate=4, tokens=64
    )
    trainer.model = tiny
    trainer.first = {k: x.clone() for k, x in tiny.state_dict().items()}
    ours, theirs = (trainer.run(name, rows, Letters()) for name in ("fovea", "sdpa"))
    assert ours[0][-1] < 0.8 * ours[0][0]
    assert ours[0] == pytest.approx(theirs[0], rel=1e-3)
    prompt = Letters().decode(Letters().encode("lines").ids)
    assert ours[2] == theirs[2] and ours[2].startswith(prompt) and len(ours[2]) > len(prompt)
    finetune.draw({"fovea": ours, "sdpa": theirs}, argparse.Namespace(out=tmp_path / "curve.svg"))
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()


def test_distillation_is_that_of_whole_arrays(tiny, rows, tmp_path):
    args = argparse.Namespace(
        device="cpu", layers=[0, 1], key_heads=1, rate=1e-2, out=tmp_path / "curve.png"
    )
    teacher = distill_torch.Teacher(tiny, args.layers)
    runs = {name: distill_torch.train(name, teacher, rows, args) for name in ("fovea", "eager")}
    losses = runs["fovea"][0]
    assert losses[-1] < 0.7 * losses[0]
    assert losses == pytest.approx(runs["eager"][0], rel=1e-3)
    whole = distill_torch.largest("eager", teacher, rows[0], args)
    assert distill_torch.largest("fovea", teacher, rows[0], args) < whole == 4 * 64 * 64 * 4
    distill_torch.draw(runs, args)
    assert args.out.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="--key-heads is 3, wanted a divisor of 2"):
        distill_torch.Student(tiny.model.layers[0].self_attn, 3)


@pytest.mark.parametrize("example", [finetune, distill_torch])
def test_what_cannot_be_done_is_said(example, tmp_path, capsys, monkeypatch):
    for wrong, told in (
        (["--steps", "0"], "--steps must be at least 1"),
        (["--tokens", "3"], "--tokens must be at least 16"),
        (["--text", "no/such"], "--text no/such: no such file"),
        (["--model", "no/such"], "--model no/such: no such file"),
        (["--out", "a.txt"], "wanted a .png"),
        (["--out", "no/such.png"], "--out no/such.png: No such file or directory"),
        (["--device", "abacus"], "--device abacus: "),
    ):
        with pytest.raises(SystemExit):
            example.main(wrong)
        assert told in capsys.readouterr().err
    out = tmp_path / "kept.png"

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(example, "pieces", stopped)
    weights = types.SimpleNamespace(tokenizer=Letters)
    monkeypatch.setattr(example, "open_weights", lambda path: weights)
    with pytest.raises(SystemExit, match="stopped, nothing is written"):
        example.main(["--out", str(out)])
    assert not out.exists()
    monkeypatch.setattr(example, "pieces", lambda *_: (_ for _ in ()).throw(OSError("it is gone")))
    with pytest.raises(SystemExit, match=f"{example.__name__}: it is gone"):
        example.main(["--out", str(out)])
