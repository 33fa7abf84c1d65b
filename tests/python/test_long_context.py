# SPDX-License-Identifier: Apache-2.0
"""Sparse attention methods on a real model: with every key they are dense attention, what they read
is what their calls say, and on 2k tokens they are as good as they should be."""
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import fovea  # noqa: E402
from long_context import command, seen, step, table, trial  # noqa: E402
from long_context.methods import METHODS, Prompt  # noqa: E402
from smollm import model, weights  # noqa: E402
from smollm.paged import PagedAttention  # noqa: E402
from smollm.text import distinct_text  # noqa: E402

LENGTH = 256
SPARSE = [name for name in METHODS if name != "dense"]
# Their o is a softmax over the keys that they read, and nothing else.
PLAIN = [name for name in SPARSE if name not in ("nsa", "sparq", "chai", "blasst", "infllm")]


@pytest.fixture(scope="module")
def source():
    return weights.open_weights()


@pytest.fixture(scope="module")
def short(source):
    """A model of two layers: what must hold does so after any number of layers."""
    llm = model.load(source, layers=2)
    llm.config = dataclasses.replace(llm.config, layers=2)
    return llm


def small_trial(short, source, names, keep, patch):
    patch.setattr(trial, "JUDGED", 64)
    patch.setattr(trial, "SPOKEN", 1)
    patch.setattr(trial, "SAMPLE", 128)
    patch.setattr(trial, "PLACES", trial.PLACES[:1])
    made = trial.texts(distinct_text(None)[:20000], LENGTH, source.tokenizer())
    judge = trial.Trial(short, fovea.Context("host", threads=2), made, "f32", lambda line: None)
    methods = [METHODS[name](keep, LENGTH) for name in ["dense", *names]]
    judge.prepare(methods)
    return judge, methods


def test_a_method_that_reads_every_key_is_dense_attention(short, source, monkeypatch):
    judge, methods = small_trial(short, source, SPARSE, 1.0, monkeypatch)
    dense, *others = map(judge.run, methods)
    assert dense.kl == 0 and dense.recall == 1 and dense.keys == 1
    for row in others:
        assert 0 <= row.kl < 1e-9, row
        assert row.perplexity == pytest.approx(dense.perplexity, rel=1e-4), row
        assert row.answer == pytest.approx(dense.answer, abs=1e-3) and row.hits == dense.hits
        assert row.recall == 1 and row.keys >= 1, row


def test_what_is_read_is_what_the_calls_say(short, source, monkeypatch):
    """o is again the softmax over the keys that seen.py finds, from the cache."""
    judge, methods = small_trial(short, source, PLAIN, 0.25, monkeypatch)
    checked = dict.fromkeys(["dense", *PLAIN], 0)

    def check(now, o):
        rows = np.arange(3, now.rows, 29)
        flags, _ = seen.keys_read(now, rows)
        p = seen.dense(now, rows) * flags
        p /= p.sum(axis=2, keepdims=True)
        pages = now.reading.table[0, :now.reading.pages_of(now.keys)]
        v = now.here(now.v)[pages].reshape(-1, *now.v.shape[2:])[:now.keys]
        want = np.einsum("hst,thd->shd", p, np.repeat(v, now.heads // now.key_heads, axis=1))
        np.testing.assert_allclose(o[0][rows], want, atol=2e-4 * np.abs(want).max())
        checked[now.reading.method.name] += len(rows)

    for method in methods:
        reading = judge.begun(method, 0).reading
        reading.observers = [check]
        judge.read(reading, judge.texts.tail, isinstance(method, Prompt))
        reading.observers = []
        reading.rewind(len(judge.texts.head))
    assert min(checked.values()) > 0


def test_arrays_without_numpy_give_the_same(short, source, monkeypatch):
    """fovea.Buffer, as on a GPU: no method slices or reshapes what only an operation may read."""
    names = ["minference", "sampleattention", "h2o", "infllm", "flexprefill"]
    rows = []
    for there in (step.Reading.there, lambda self, y: self.ctx.array(np.ascontiguousarray(y))):
        monkeypatch.setattr(step.Reading, "there", there)
        judge, methods = small_trial(short, source, names, 0.25, monkeypatch)
        rows.append([judge.run(method) for method in methods])
    for one, other in zip(*rows):
        assert (one.perplexity, one.kl, one.recall, one.answer) == (
            other.perplexity, other.kl, other.recall, other.answer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The command at 2k."""
    out = tmp_path_factory.mktemp("long") / "made"
    rows = command.main(["--methods", "streamingllm,quest,sparq", "--out", str(out)])
    return rows, out


def test_dense_is_the_models_perplexity(whole, source, ctx):
    dense, tokens = whole[0][0], source.tokenizer().encode(distinct_text(None)).ids[:2048]
    llm = model.load(source)
    attention = PagedAttention(llm.config, 2048, ctx)
    logits = llm.forward(tokens, attention, every=True)[1023:2047].astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = np.exp(-logits[np.arange(1024), tokens[1024:]].mean())
    assert dense.method == "dense" and dense.kl == 0
    assert dense.perplexity == pytest.approx(want, rel=1e-4)
    assert 5 < want < 20


def test_methods_are_as_good_as_they_should_be(whole):
    dense, streaming, quest, sparq = whole[0]
    assert dense.hits.count("1") >= 3
    assert streaming.hits[:4] == "0000"  # they lie before its window
    assert sparq.hits[:4] != "0000"  # and are found where a row reads what it looks for
    assert min(quest.answer, sparq.answer) > streaming.answer + 5
    assert 0 < sparq.kl < quest.kl < streaming.kl < 1
    order = [row.perplexity for row in (dense, sparq, quest, streaming)]
    assert order == sorted(order) and order[-1] < 1.5 * order[0]
    assert streaming.recall < quest.recall < sparq.recall < 1 and quest.recall > 0.85
    # 256 of 1025 to 2048; two layers of quest read all
    for row, keys in ((streaming, 0.169), (sparq, 0.169), (quest, 0.225)):
        assert row.keys == pytest.approx(keys, abs=0.003)


def test_the_table_and_the_plot_are_whole(whole):
    rows, out = whole
    assert sorted(path.name for path in out.iterdir()) == ["2048.md", "2048.png", "2048.tsv"]
    assert (out / "2048.png").read_bytes().startswith(b"\x89PNG")
    read = table.read_tsv(out / "2048.tsv")
    assert [row["method"] for row in read] == ["dense", "streamingllm", "quest", "sparq"]
    for got, row in zip(read, rows):
        assert float(got["perplexity"]) == row.perplexity and got["hits"] == row.hits
    words = (out / "2048.md").read_text().splitlines()
    assert words[0].startswith("| method |") and words[4].startswith("| quest |")


@pytest.mark.parametrize("words, why", [
    (["--methods", "quest,none"], "--methods has none, wanted some of dense, streamingllm"),
    (["--methods", ""], "--methods has an empty name"),
    (["--backend", "tpu"], "invalid choice: 'tpu'"),
    (["--length", "100"], "--length is 100, wanted 1152 to 8192"),
    (["--length", "9000"], "wanted 1152 to 8192"),
    (["--keep", "0"], "--keep is 0, wanted more than 0"),
    (["--text", "no/such"], "no such file"),
    (["--text", str(EXAMPLES / "smollm/requirements.txt")], "lower --length"),
])
def test_the_command_says_what_is_wrong(words, why, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        command.main([*words, "--out", str(tmp_path / "out")])
    told = capsys.readouterr().err + str(left.value.code)
    assert left.value.code not in (0, None) and why in told
    assert not (tmp_path / "out").exists()


def test_a_table_is_not_written_over(tmp_path, capsys):
    (tmp_path / "2048.md").write_text("mine")
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path)])
    assert "--force writes over it" in capsys.readouterr().err
    assert (tmp_path / "2048.md").read_text() == "mine"


def test_an_interrupt_is_a_sentence(tmp_path):
    line = [sys.executable, str(EXAMPLES / "long_context/command.py"), "--out", str(tmp_path / "o")]
    with subprocess.Popen(line, text=True, stderr=subprocess.PIPE) as started:
        for told in started.stderr:
            if re.search("dense|learning", told):
                break
        started.send_signal(signal.SIGINT)
        rest = started.stderr.read()
    assert started.returncode == 130 and not (tmp_path / "o").exists()
    assert "interrupted after 0 methods; no table was written" in rest
    assert "Traceback" not in rest
