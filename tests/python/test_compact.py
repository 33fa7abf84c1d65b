# SPDX-License-Identifier: Apache-2.0
"""Attention with a small cache: gradients are right, pages give the logits of training, latents of
full rank and lists of all keys are dense attention, and the commands write what they measure."""
import os
import pathlib
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import fovea  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import smollm.model  # noqa: E402
from compact import curve, indexed, indexer, latent, latents, lm  # noqa: E402
from compact.kinds import KINDS  # noqa: E402
from compact.model import Attention, Model, Pages  # noqa: E402
from compact.rounded import ENGINES  # noqa: E402
from smollm.paged import PagedAttention  # noqa: E402
from smollm.text import distinct_text  # noqa: E402
from training import table, tape  # noqa: E402
from training.adam import Adam  # noqa: E402
from training.calls import Calls  # noqa: E402
from training.model import train_step  # noqa: E402
from training.text import windows  # noqa: E402

# Of a token and layer.
NUMBERS = dict(mha=512, gqa=128, mqa=64, mla=144, mfa=128, mfa_kr=64, tpa=160)
SMALL = smollm.model.Config(layers=2, heads=4, key_heads=2, head_dim=16, rope_base=1e4,
                            norm_eps=1e-5, context=512)
TINY = "--steps 2 --rows 2 --tokens 32 --layers 1 --held-out 2 --threads 1 --texts 2".split()


@pytest.fixture(scope="module")
def text():
    return np.frombuffer(distinct_text(None).encode(), np.uint8).astype(np.int64)


@pytest.fixture
def engine(ctx):
    return Attention(ctx)


def tiny(name, engine):
    """With weights that start at 0 moved, so that all count."""
    model = Model(KINDS[name], engine, layers=1, width=16)
    for w in model.weights.values():
        w.value += np.float32(0.3) * (w.value == 0)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_slopes(name, text, engine):
    """Along its own gradient each weight changes the loss as the gradient says."""
    model = tiny(name, engine)
    x, y = windows(text, np.array([100, 5000]), 16)
    tape.cross_entropy(model.forward(x), y).backward()
    model.trained = False
    for name, w in model.weights.items():
        assert w.grad is not None, name
        along = w.grad.astype(np.float64)
        squares, kept, losses = float((along**2).sum()), w.value, []
        for sign in (1, -1):
            step = sign * 0.01 / squares**0.5
            w.value = (kept + step * along).astype(np.float32)
            losses.append(float(tape.cross_entropy(model.forward(x), y).value))
        w.value = kept
        assert losses[0] - losses[1] == pytest.approx(0.02 * squares**0.5, rel=0.02), name


@pytest.mark.parametrize("name", KINDS)
def test_a_step_lowers_the_loss(name, text, engine):
    model = tiny(name, engine)
    adam, batch = Adam(model.weights, 3e-3, 4, most=1.0), windows(text, np.arange(0, 900, 300), 24)
    losses = [train_step(model, adam, *batch) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("name", KINDS)
def test_pages_give_the_logits_of_training(name, text, engine):
    """MLA is absorbed over pages and expanded in training; the pages of MFA-KR have no values."""
    model = tiny(name, engine)
    tokens = text[np.array([[0], [7000]]) + np.arange(75)]
    model.trained, pages, parts = False, Pages(engine, 1, 2, 75), []
    whole = model.forward(tokens).value
    for first, last in ((0, 40), (40, 41), (41, 60), *((at, at + 1) for at in range(60, 75))):
        parts.append(model.forward(tokens[:, first:last], pages).value)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=5e-5)
    assert np.abs(whole).max() > 1 and pages.bytes() == 4 * NUMBERS[name]
    assert (np.sort(pages.table.ravel()) == np.arange(pages.count)).all()


@pytest.mark.parametrize("name", KINDS)
def test_buffers_give_what_arrays_give(name, text, engine, monkeypatch):
    """A GPU's context is given buffers, and views of them."""
    tokens = text[np.array([[0], [7000]]) + np.arange(20)]

    def told():
        model, pages = tiny(name, engine), Pages(engine, 1, 2, 20)
        tape.cross_entropy(model.forward(tokens), tokens).backward()
        grads = {name: w.grad for name, w in model.weights.items()}
        model.trained = False
        return grads, model.forward(tokens, pages).value, pages

    grads, logits, _ = told()
    monkeypatch.setattr(Calls, "empty", lambda self, shape: self.ctx.empty(shape, "f32"))
    monkeypatch.setattr(Calls, "there", lambda self, x: self.ctx.array(np.ascontiguousarray(x)))
    engine.tables.clear()
    grads_of_buffers, logits_of_buffers, pages = told()
    assert all(isinstance(pool, fovea.Buffer) for pool in pages.pools[0].values())
    np.testing.assert_allclose(logits_of_buffers, logits, atol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grads_of_buffers[name], grad, atol=1e-5, err_msg=name)


def test_kinds_have_as_many_weights(engine):
    counts = {name: Model(kind, engine).count() for name, kind in KINDS.items()}
    assert all(abs(count / counts["mha"] - 1) < 0.01 for count in counts.values()), counts


def test_the_command_trains_decodes_and_goes_on(tmp_path, capsys):
    command = [*TINY, "--context", "40", "--spoken", "3", "--out", str(tmp_path)]
    rows = lm.main([*command, "--kind", "mqa,mla"])
    assert [row.kind for row in rows] == ["mqa", "mla"]
    assert all(3 < row.bits < 10 and row.apart < 1e-4 and row.decode > 0 for row in rows)
    assert [row.cache_bytes for row in rows] == [4 * 64, 4 * 144]
    assert (tmp_path / "lm.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "lm.md").read_text() in capsys.readouterr().out
    again = lm.main([*command, "--kind", "all", "--kept"])
    assert [row.bits for row in again if row.kind in ("mqa", "mla")] == [row.bits for row in rows]
    assert [row["kind"] for row in table.read_tsv(tmp_path / "lm.tsv")] == list(KINDS)
    assert "mqa: step" not in (heard := capsys.readouterr().err) and "--force" not in heard
    with pytest.raises(SystemExit) as why:
        lm.main([*command, "--kind", "mqa"])
    assert why.value.code == 1 and "--force" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="mqa.npz has no 1 .* norm of shape"):
        lm.main([*command, "--kind", "mqa", "--kept", "--layers", "2"])


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("name, most", [("bf16", 0.02), ("sagebwd", 0.06)])
def test_rounded_attention_is_near_exact(ctx, text, name, most, buffers, monkeypatch):
    """Its loss and gradients, from arrays and from buffers as a GPU's context is given."""
    batch = windows(text, np.array([100, 5000]), 96)

    def grads(engine):
        model = Model(KINDS["gqa"], engine, layers=1, width=32)
        loss = tape.cross_entropy(model.forward(batch[0]), batch[1])
        loss.backward()
        return float(loss.value), {name: w.grad for name, w in model.weights.items()}

    exact_loss, exact = grads(ENGINES["f32"](ctx))
    if buffers:
        monkeypatch.setattr(Calls, "empty", lambda self, shape: self.ctx.empty(shape, "f32"))
        monkeypatch.setattr(Calls, "there", lambda self, x: self.ctx.array(np.ascontiguousarray(x)))
        monkeypatch.setattr(ENGINES["bf16"], "rounded",
                            lambda self, shape: self.ctx.empty(shape, "bf16"))
    loss, found = grads(ENGINES[name](ctx))
    assert loss == pytest.approx(exact_loss, rel=2e-3)
    for of, grad in exact.items():
        apart = np.linalg.norm(found[of] - grad) / np.linalg.norm(grad)
        assert (1e-4 if of.split()[-1] in "qkv" else 0) < apart < most, (of, apart)


def test_the_curves_differ_by_rounding_alone(tmp_path, capsys):
    command = "--steps 3 --rows 2 --tokens 32 --layers 1 --held-out 2 --threads 1".split()
    rows = curve.main([*command, "--seeds", "2", "--out", str(tmp_path)])
    assert [(row.attention, row.seed) for row in rows] == [
        (name, seed) for seed in (0, 1) for name in curve.NAMES]
    for exact, *others in (rows[:3], rows[3:]):
        assert exact.apart == 0 and exact.bits == exact.exact_bits
        for row in others:
            assert 0 < row.apart < 0.05 and row.exact_bits != exact.bits
            assert row.bits == pytest.approx(exact.bits, abs=0.05)
    assert abs(rows[0].bits - rows[3].bits) > 1e-3
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curve.md").read_text() in capsys.readouterr().out
    with pytest.raises(SystemExit) as why:
        curve.main([*command, "--out", str(tmp_path)])
    assert why.value.code == 1 and "--force" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--attention has fp4, wanted some of f32, bf16, sagebwd"):
        curve.main([*command, "--attention", "fp4", "--out", str(tmp_path), "--force"])


def small(rank=None):
    """A random model of SmolLM2's form; rank: of its keys and values."""
    random, c, width = np.random.default_rng(5), SMALL, 64

    def noise(n, m):
        return random.standard_normal((n, m), np.float32) / np.float32(m**0.5)
    queries, heads = c.heads * c.head_dim, (c.heads + 2 * c.key_heads) * c.head_dim
    layers = []
    for _ in range(c.layers):
        qkv = 2 * noise(heads, width)
        if rank:
            qkv[queries:] = noise(heads - queries, rank) @ noise(rank, width) * rank**0.5
        ones = random.uniform(0.5, 1.5, width).astype(np.float32)
        layers.append(smollm.model.Layer(ones, qkv, noise(width, queries), ones, noise(256, width),
                                         noise(width, 128)))
    return smollm.model.Model(c, noise(50, width), layers, np.ones(width, np.float32))


def logits(llm, attention, tokens):
    return np.concatenate([llm.forward(piece, attention, every=True)
                           for piece in np.split(tokens, (30, 31, 50))])


@pytest.mark.parametrize("basis", ["weights", "text"])
def test_latents_of_full_rank_are_the_model(ctx, basis):
    llm, tokens = small(), np.random.default_rng(6).integers(0, 50, 70)
    bases = (latents.of_weights(llm) if basis == "weights"
             else latents.of_text(llm, [tokens[::-1]], ctx))
    want = logits(llm, PagedAttention(SMALL, 70, ctx), tokens)
    whole, half = (logits(llm, latents.LatentAttention(SMALL, 70, ctx, bases, rank), tokens)
                   for rank in (64, 32))
    np.testing.assert_allclose(whole, want, atol=1e-4 * np.abs(want).max())
    assert np.abs(half - want).max() > 0.01 * np.abs(want).max()


def test_latents_of_the_weights_rank_are_the_model(ctx):
    llm, tokens = small(rank=24), np.random.default_rng(6).integers(0, 50, 70)
    want = logits(llm, PagedAttention(SMALL, 70, ctx), tokens)
    attention = latents.LatentAttention(SMALL, 70, ctx, latents.of_weights(llm), 24)
    np.testing.assert_allclose(logits(llm, attention, tokens), want,
                               atol=1e-4 * np.abs(want).max())
    row = latents.judge(llm, "weights", latents.of_weights(llm), 24, [list(tokens)], ctx)
    assert row.cache_bytes == 2 * 4 * 24
    assert row.loss == pytest.approx(latents.dense(llm, [list(tokens)], ctx).loss, abs=1e-4)


def test_dsa_of_every_key_is_dense(ctx):
    llm, tokens = small(), list(np.random.default_rng(6).integers(0, 50, 90))
    learned = [indexed.Indexer(SMALL, basis[:, :8]) for basis in np.random.default_rng(2)
               .standard_normal((SMALL.layers, 32, 32), np.float32)]
    args = indexer.arguments(["--counts", "16", "90", "--judged", "40"])
    rows = {(row.reads, row.count): row for row in indexed.judge(llm, learned, tokens, ctx, args)}
    dense = rows["dense", 90]
    want = logits(llm, PagedAttention(SMALL, 90, ctx), np.array(tokens))[49:89].astype(np.float64)
    p = np.exp(want) / np.exp(want).sum(axis=1, keepdims=True)
    assert dense.loss == pytest.approx(-np.log(p[range(40), tokens[50:]]).mean(), abs=1e-4)
    for reads in ("dsa", "window"):
        whole, few = rows[reads, 90], rows[reads, 16]
        assert whole.loss == pytest.approx(dense.loss, abs=1e-5)
        assert whole.held == pytest.approx(1, abs=1e-5) and 0.01 < few.held < 0.9
        assert abs(few.loss - dense.loss) > 1e-3


def test_an_indexer_of_all_columns_begins_as_the_model_does():
    """Its products are those of q and k of each head, over sqrt(d)."""
    random = np.random.default_rng(3)
    q, k = (random.standard_normal((12, heads, 16), np.float32) for heads in (4, 2))
    basis = np.linalg.qr(random.standard_normal((32, 32)))[0].astype(np.float32)
    made = indexed.Indexer(SMALL, basis)
    index_q, weight = made.queries(tape.Var(q.reshape(1, 12, -1)))
    index_k = made.keys(tape.Var(k.reshape(1, 12, -1)))
    got = np.einsum("shf,tf->hst", index_q.value[0], index_k.value[0, :, 0])
    want = np.einsum("shd,thd->hst", q, k.repeat(2, axis=1)) / 4
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (weight.value == np.float32(0.15)).all()


def test_the_indexers_gradient_is_a_slope_and_it_learns(ctx):
    random = np.random.default_rng(3)
    q, k = (random.standard_normal((60, heads * 16), np.float32) for heads in (4, 2))
    made = indexed.Indexer(SMALL, random.standard_normal((32, 8), np.float32))
    made.weights["w"].value = 0.1 * random.standard_normal((64, 4), np.float32)
    calls = Calls(ctx)
    indexed.divergence(calls, SMALL, made, q[-20:], k).backward()
    for name, w in made.weights.items():
        along, kept, losses = w.grad.astype(np.float64), w.value, []
        size = float((along**2).sum()) ** 0.5
        for sign in (1, -1):
            w.value = (kept + sign * 0.003 / size * along).astype(np.float32)
            losses.append(float(indexed.divergence(calls, SMALL, made, q[-20:], k).value))
        w.value = kept
        assert losses[0] - losses[1] == pytest.approx(0.006 * size, rel=0.05), name
    args = indexer.arguments("--steps 40 --rows 20 --width 8 --rate 0.003".split())
    texts = [list(random.integers(0, 50, 60)) for _ in range(2)]
    before, after = indexed.learn(small(), texts, ctx, args)[1:]
    assert 0 < after < 0.7 * before


@pytest.mark.model
@pytest.mark.parametrize("command, options", [
    (latent, "--ranks 384 96 --held-out 1 --held-tokens 48 --windows 1"),
    (indexer, "--counts 16 90 --length 90 --judged 20 --windows 1 --rows 32 --steps 2"),
])
def test_commands_on_the_model(command, options, tmp_path, capsys, monkeypatch):
    """On its first three layers."""
    load = smollm.model.load

    def begin(source, progress):
        llm = load(source, progress, 3)
        llm.config.layers = 3
        return llm

    monkeypatch.setattr(smollm.model, "load", begin)
    name = command.__name__.rpartition(".")[2]
    rows = command.main([*options.split(), "--threads", "2", "--out", str(tmp_path)])
    assert len(rows) == 5 == len(table.read_tsv(tmp_path / f"{name}.tsv"))
    of_all = [row.loss for row in rows if 90 in vars(row).values() or 384 in vars(row).values()]
    assert len(of_all) == 3
    np.testing.assert_allclose(of_all, rows[0].loss, atol=1e-3)
    assert (tmp_path / f"{name}.md").read_text() in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command, options, words", [
    (lm, "--kind mha,none", "--kind has none, wanted some of mha"),
    *(pytest.param(*row, marks=pytest.mark.model) for row in (
        (latent, "--ranks 385", "--ranks has 385, wanted at most 384"),
        (indexer, "--width 193", "--width is 193, wanted at most 192"),
        (latent, "--held-tokens 20000", "lower --held-tokens"),
        (indexer, "--length 20000", "lower --length"),
    )),
])
def test_what_cannot_be_done_is_said(command, options, words):
    with pytest.raises(SystemExit, match=words):
        command.main(options.split())


@pytest.mark.parametrize("command, options", [
    (lm, "--steps 0"), (lm, "--context 4096"), (lm, "--rate 0"), (lm, "--text nowhere"),
    (latent, "--ranks 0"), (latent, "--threads -1"), (indexer, "--counts 4"),
    (indexer, "--length 100 --judged 99"), (indexer, "--length 60 --judged 9"),
])
def test_wrong_options(command, options):
    with pytest.raises(SystemExit) as why:
        command.main(options.split())
    assert why.value.code == 2
