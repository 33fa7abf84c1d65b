# SPDX-License-Identifier: Apache-2.0
"""fovea-trace: what its files say is what trace_forward said, and each says the same."""

import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import fovea
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
from fovea_trace import files, page, record  # noqa: E402
from fovea_trace.output import Folder  # noqa: E402
from fovea_trace.tokens import token_weights  # noqa: E402

TEXT = "\n".join(f"Rule {i}: say what was got, “and” what was <wanted> & why." for i in range(40))
BLOCK, KEEP = 16, 4


@pytest.fixture
def trace(ctx):
    """Two layers of random queries and keys, streamed; beside them what trace_forward says."""
    random = np.random.default_rng(8)
    got, wanted = bytearray(), []
    fields = dict(block_rows=BLOCK, block_keys=2 * BLOCK, causal=True)
    layers = [2, 5]
    with fovea.TraceSession(ctx, keep=KEEP, edge_kind="mass", **fields).begin(
        got.extend
    ) as session:
        for layer in layers:
            q = random.standard_normal((1, 250, 4, 8), dtype=np.float32)
            k = random.standard_normal((1, 250, 2, 8), dtype=np.float32)
            session.trace(q, k, layer=layer)
            wanted.append(
                fovea.trace_forward(ctx, q, k, keep=KEEP, selected=True, edge_mass=True, **fields)
            )
    about = dict(title="random", tokens=250, layers=layers, heads=4, block_rows=BLOCK,
                 block_keys=2 * BLOCK, keep=KEEP, edge_kind="mass")  # fmt: skip
    row_text = [f'row "{i}"\n<' for i in range(16)]
    retained = random.random((2, 4, 16), dtype=np.float32)
    edges = np.frombuffer(got, record.RECORD)
    return record.Trace(about, edges, retained, row_text, [f"key {i} é" for i in range(8)]), wanted


def rows_of(q_block):
    return min(250 - BLOCK * q_block, BLOCK)


def tuples(trace, wanted):
    """(layer, head, row block, key block, weight) from selected and edge_mass."""
    for layer, (selected, mass) in zip(trace.layers, wanted):
        for head, q, slot in np.ndindex(selected.shape[1:]):
            if selected[0, head, q, slot] >= 0:
                yield layer, head, q, int(selected[0, head, q, slot]), mass[0, head, q, slot]


def test_every_file_has_the_edges_of_trace_forward(trace, tmp_path):
    trace, wanted = trace
    want = list(tuples(trace, wanted))
    assert len(want) > 300

    files.write_npz(trace, tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz") as npz:  # no pickle
        assert [tuple(e) for e in npz["edge"]] == [w[:4] for w in want]
        assert np.array_equal(npz["edge_weight"], np.array([w[4] for w in want]))
        assert np.array_equal(npz["retained"], trace.retained)
        assert npz["row_text"].tolist() == trace.row_text
        assert npz["key_text"].tolist() == trace.key_text
        assert json.loads(str(npz["about"])) == trace.about
        np.testing.assert_allclose(npz["edge_share"] * [rows_of(w[2]) for w in want],
                                   [w[4] for w in want], rtol=1e-6)

    files.write_csv(trace, tmp_path / "trace.csv")
    with open(tmp_path / "trace.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["layer", "head", "q_block", "k_block", "weight", "share"]
    assert [(*map(int, line[:4]), np.float32(line[4])) for line in lines] == want
    shares = [float(line[5]) * rows_of(int(line[2])) for line in lines]
    np.testing.assert_allclose(shares, [w[4] for w in want], rtol=1e-6)

    files.write_json(trace, tmp_path / "trace.json")
    graph = json.loads((tmp_path / "trace.json").read_text())
    assert graph["directed"] is True and trace.about.items() <= graph["graph"].items()
    assert "summed over the rows" in graph["graph"]["weight_is"]
    assert [link["share"] for link in graph["links"]] == [float(line[5]) for line in lines]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == 16 + 8
    assert nodes["q3"]["text"] == trace.row_text[3]
    assert (nodes["q3"]["first_token"], nodes["q3"]["last_token"]) == (48, 63)
    assert (nodes["k7"]["first_token"], nodes["k7"]["last_token"]) == (224, 249)
    got = [(link["layer"], link["head"], nodes[link["source"]]["block"],
            nodes[link["target"]]["block"], np.float32(link["weight"]))
           for link in graph["links"]]  # fmt: skip
    assert got == want


def test_a_score_that_json_cannot_say_is_null(trace, tmp_path):
    trace, _ = trace
    trace.about["edge_kind"] = "score"
    trace.edges = trace.edges.copy()
    trace.edges["weight"][0] = -np.inf
    files.write_json(trace, tmp_path / "trace.json")
    link = json.loads((tmp_path / "trace.json").read_text())["links"][0]
    assert link["weight"] is None and "share" not in link
    files.write_csv(trace, tmp_path / "trace.csv")
    with open(tmp_path / "trace.csv") as file:
        assert file.readline() == "layer,head,q_block,k_block,weight\n"
        assert file.readline().endswith(",-inf\n")


def test_progress_counts_edges(trace, tmp_path, monkeypatch):
    trace, _ = trace
    monkeypatch.setattr(files, "STEP", 100)
    seen = []
    files.write_csv(trace, tmp_path / "trace.csv", lambda done, total: seen.append((done, total)))
    assert seen == [(i, len(trace.edges)) for i in range(0, len(trace.edges), 100)]


def test_blocks_of_text_are_the_whole_text():
    offsets = [(i, i + 1) for i in range(len(TEXT))]
    blocks = record.block_text(TEXT, offsets, 64)
    assert "".join(blocks) == TEXT and len(blocks[0]) == 64
    assert np.allclose(record.block_mean(np.arange(5.0)[None], 2), [[0.5, 2.5, 4]])


def test_token_weights_are_the_softmax():
    random = np.random.default_rng(2)
    q = random.standard_normal((50, 4, 8), np.float32)
    k = random.standard_normal((50, 2, 8), np.float32)
    key, weight = token_weights(q, k, 2, 16, 0.3, top=5)
    assert key.shape == weight.shape == (4, 16, 5)
    for head, row in np.ndindex(4, 16):
        x = np.exp(0.3 * k[:32 + row + 1, head // 2].astype(np.float64) @ q[32 + row, head])
        want = np.sort(x / x.sum())[::-1][:5]
        np.testing.assert_allclose(weight[head, row], want, rtol=1e-5)
        np.testing.assert_allclose((x / x.sum())[key[head, row]], want, rtol=1e-5)
    last, weight = token_weights(q, k, 3, 16, 0.3)  # a short block
    assert last.shape == (4, 2, 16) and weight.sum(2).max() <= 1 + 1e-6
    first, weight = token_weights(q, k, 0, 16, 0.3)
    assert weight[:, 0, 0] == pytest.approx(1)  # it sees itself alone
    assert not weight[:, 0, 1:].any()


def test_a_folder_is_looked_at_first_and_files_are_whole(tmp_path):
    def broken(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with Folder(tmp_path / "a/b", ["x", "y"]) as folder:
        folder.save("x", lambda path: path.write_text("one"))
        with pytest.raises(OSError, match="No space"):
            folder.save("y", broken)
    assert [p.name for p in (tmp_path / "a/b").iterdir()] == ["x"]
    with pytest.raises(FileExistsError, match="has a x already: --force"):
        Folder(tmp_path / "a/b", ["x", "y"])
    with Folder(tmp_path / "a/b", ["x"], force=True) as folder, pytest.raises(OSError):
        folder.save("x", broken)
    assert (tmp_path / "a/b/x").read_text() == "one"
    with Folder(tmp_path / "vain", ["x"]):
        pass
    assert not (tmp_path / "vain").exists()
    with pytest.raises(OSError):
        Folder(tmp_path / "a/b/x/c", ["x"])


def test_two_traces_share_a_page_and_its_colours(trace, tmp_path):
    first, _ = trace
    second = record.Trace(dict(first.about, title="other </script>", edge_kind="score"),
                          first.edges[:-9].copy(), first.retained, first.row_text, first.key_text)
    second.edges["weight"][0], second.edges["weight"][1] = -np.inf, 99
    page.write_page(first, tmp_path / "both.html", second)
    both = (tmp_path / "both.html").read_text(encoding="utf-8")
    page.write_page(first, tmp_path / "one.html")
    assert "other </script>" not in both and "://" not in both
    assert len(both) < 1.6 * (tmp_path / "one.html").stat().st_size + 20_000  # the viewer once
    least = min(first.edges["weight"].min(), second.edges["weight"][1:].min())
    assert page.scale([first, second]) == [least, 99]
    fewer = record.Trace(dict(first.about, layers=[2]), *list(vars(first).values())[1:])
    with pytest.raises(ValueError, match="other layers or heads"):
        page.write_page(first, tmp_path / "both.html", fewer)


def environment():
    return {**os.environ, "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"}


def command(*arguments):
    return [sys.executable, str(EXAMPLES / "fovea_trace/command.py"), *map(str, arguments)]


def run(*arguments):
    ran = subprocess.run(command(*arguments), capture_output=True, text=True, env=environment())
    assert "Traceback" not in ran.stderr
    return ran


def test_the_command_traces_a_model(tmp_path):
    text = tmp_path / "rules.txt"
    text.write_text(TEXT, encoding="utf-8")
    ran = run(text, "--out", tmp_path / "out", "--layers", "0,2-3", "--tokens", 300, "--keep", 3,
              "--block-rows", 32, "--block-keys", 16)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "trace_forward.host" in ran.stderr and "tracing the first 300" in ran.stderr
    with np.load(tmp_path / "out/trace.npz") as npz:
        edge, weight, retained = npz["edge"], npz["edge_weight"], npz["retained"]
        assert "".join(npz["row_text"]) == "".join(npz["key_text"])
        assert TEXT.startswith("".join(npz["row_text"]))
    assert sorted(set(edge[:, 0])) == [0, 2, 3] and retained.shape == (3, 9, 10)
    rows = np.zeros((4, 9, 10))
    np.add.at(rows, tuple(edge[:, :3].T), weight)
    np.testing.assert_allclose(
        rows[[0, 2, 3]], np.broadcast_to([32] * 9 + [12], (3, 9, 10)), rtol=1e-4
    )
    assert retained.min() > 0 and retained.max() <= 1
    np.testing.assert_allclose(retained[..., 0], 1, atol=1e-4)  # two blocks of keys, three kept
    lines = (tmp_path / "out/trace.csv").read_text().count("\n")
    links = json.loads((tmp_path / "out/trace.json").read_text())["links"]
    assert lines - 1 == len(links) == len(edge)
    assert "://" not in (tmp_path / "out/trace.html").read_text(encoding="utf-8")


def test_the_command_puts_two_texts_and_single_tokens_into_a_page(tmp_path):
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, words in zip(texts, (TEXT, TEXT[1000:])):
        path.write_text(words, encoding="utf-8")
    out = tmp_path / "out"
    ran = run(texts[0], "--beside", texts[1], "--out", out, "--layers", "0-1", "--tokens-of", 2)
    assert ran.returncode == 0, ran.stderr
    names = {f"{stem}.{kind}" for stem in ("trace", "beside") for kind in ("npz", "json", "csv")}
    assert {path.name for path in out.iterdir()} == names | {"trace.html"}
    with np.load(out / "beside.npz") as npz:
        assert "".join(npz["token_text"]) == TEXT[1000:]
        assert npz["token_block"] == 2 and npz["token_weight"].shape == (2, 9, 64, 16)
        assert 0.3 < npz["token_weight"].sum(3).mean() <= 1
    before = (out / "trace.npz").read_bytes()
    ran = run(texts[0], "--out", out)
    assert ran.returncode == 1 and "has a trace.npz already: --force" in ran.stderr
    assert (out / "trace.npz").read_bytes() == before


def test_an_interrupt_keeps_the_layers_that_are_done(tmp_path, monkeypatch, capsys):
    from fovea_trace import command as program
    text = tmp_path / "rules.txt"
    text.write_text(TEXT, encoding="utf-8")

    def interrupted(at, *more):
        def progress(self, layer, edges):
            if layer == at:
                raise KeyboardInterrupt
        monkeypatch.setattr(program.Progress, "__call__", progress)
        words = ["fovea-trace", text, "--out", tmp_path / "out", "--layers", "0,2,3", *more]
        monkeypatch.setattr(sys, "argv", [*map(str, words)])
        with pytest.raises(SystemExit) as left:
            program.main()
        assert left.value.code == 130
        return capsys.readouterr().err

    assert interrupted(0).endswith("interrupted: nothing was saved\n")
    assert interrupted(3, "--beside", str(text)).endswith("interrupted: nothing was saved\n")
    assert not (tmp_path / "out").exists()
    assert interrupted(3).endswith("out holds the layers up to 2\n")
    with np.load(tmp_path / "out/trace.npz") as npz:
        assert json.loads(str(npz["about"]))["layers"] == [0, 2]
        assert sorted(set(npz["edge"][:, 0])) == [0, 2] and len(npz["retained"]) == 2
    assert (tmp_path / "out/trace.html").exists()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder with a random Llama and a tokenizer of bytes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4)
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def test_a_missing_pytorch_is_said(monkeypatch):
    from fovea_trace import hf
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="--hf: .*torch.* -m pip install torch transformers"):
        hf.load("anything")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_hugging_face_model_is_traced_as_it_attends(llama, implementation):
    import torch
    from fovea_trace import hf

    model, tokenizer = hf.load(llama)
    model.set_attn_implementation(implementation)
    ids = tokenizer(TEXT[:150], return_tensors="pt").input_ids[:, :150]
    before = model(ids).logits
    trace = hf.trace_model(model, ids, tokenizer=tokenizer, block_rows=16, block_keys=16,
                           tokens_of=3, title="rules")
    assert model.config._attn_implementation == implementation
    assert torch.equal(model(ids).logits, before)
    assert "".join(trace.row_text) == tokenizer.decode(ids[0])
    model.set_attn_implementation("eager")
    p = torch.stack(model(ids, output_attentions=True).attentions)[:, 0].detach().numpy()
    sums = np.add.reduceat(np.add.reduceat(p, range(0, 150, 16), 2), range(0, 150, 16), 3)
    got = np.zeros_like(sums)  # sixteen blocks are kept of ten: all
    np.add.at(got, tuple(trace.edges[name] for name in record.RECORD.names[:4]),
              trace.edges["weight"])
    np.testing.assert_allclose(got, sums, atol=1e-4)
    np.testing.assert_allclose(trace.retained, 1, atol=1e-5)
    heaviest = np.sort(p[:, :, 48:64], 3)[..., :-17:-1]
    np.testing.assert_allclose(trace.tokens.weight, heaviest, atol=1e-5)
    model.train()
    one = hf.trace_model(model, ids, layers=[1], block_rows=16, block_keys=16)
    assert model.training
    assert set(one.edges["layer"]) == {1} and one.row_text[0].startswith("[")


def test_a_hugging_face_model_that_a_trace_would_not_show_is_refused(llama):
    from fovea_trace import hf

    model, _ = hf.load(llama)
    ids = list(range(40))
    for fields, why in ((dict(layers=[5]), "layers is .5., wanted"),
                        (dict(tokens_of=9), "tokens_of is 9, wanted a block of 0 .. 0"),
                        (dict(token_text=["a"]), "token_text has 1 entries, wanted 40")):
        with pytest.raises(hf.Unseen, match=why):
            hf.trace_model(model, ids, **fields)
    with pytest.raises(hf.Unseen, match="shape .2, 3., wanted"):
        hf.trace_model(model, [[1, 2, 3], [4, 5, 6]])
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(hf.Unseen, match="layer 1 is not causal"):
        hf.trace_model(model, ids)
    assert model.config._attn_implementation == "sdpa"
    model.model.layers[1].self_attn.is_causal = True
    assert hf.trace_model(model, ids).layers == [0, 1, 2]


def test_what_a_trace_cannot_show_is_computed_as_ever_where_it_is_left_out():
    """Gemma 2 caps logits and has windows: a layer is traced only where neither matters."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from fovea_trace import hf
    torch.manual_seed(1)
    config = transformers.Gemma2Config(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=32, initializer_range=0.5,
        attn_logit_softcapping=1.0, query_pre_attn_scalar=3, attn_implementation="eager")
    model, ids = transformers.Gemma2ForCausalLM(config).eval(), torch.arange(60)[None] % 99
    with pytest.raises(hf.Unseen, match="layer 0 has a sliding window of 32 tokens, fewer than"):
        hf.trace_model(model, ids)
    with pytest.raises(hf.Unseen, match="layer 1 caps its logits"):
        hf.trace_model(model, ids, layers=[1])
    model.model.layers[1].self_attn.attn_logit_softcapping = None
    trace = hf.trace_model(model, ids, layers=[1], block_rows=16, block_keys=16)
    p = model(ids, output_attentions=True).attentions[1][0].detach().numpy()
    got = np.zeros((4, 4, 4))
    np.add.at(got, tuple(trace.edges[name] for name in record.RECORD.names[1:4]),
              trace.edges["weight"])
    sums = np.add.reduceat(np.add.reduceat(p, range(0, 60, 16), 1), range(0, 60, 16), 2)
    np.testing.assert_allclose(got, sums, atol=1e-4)


def test_the_command_takes_a_hugging_face_folder(llama, tmp_path, monkeypatch):
    from fovea_trace import command as program
    text = tmp_path / "rules.txt"
    text.write_text(TEXT, encoding="utf-8")
    words = [text, "--hf", llama, "--out", tmp_path / "out", "--tokens", 200, "--layers", "1-2"]
    monkeypatch.setattr(sys, "argv", ["fovea-trace", *map(str, words)])
    program.main()
    with np.load(tmp_path / "out/trace.npz") as npz:
        assert npz["retained"].shape == (2, 4, 4) and set(npz["edge"][:, 0]) == {1, 2}
        assert TEXT.startswith("".join(npz["row_text"])[:100])


def test_what_is_no_hugging_face_folder(llama, tmp_path):
    from fovea_trace import hf
    (tmp_path / "empty").mkdir()
    shutil.copytree(llama, tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*"))
    for name, why in [("none", "no folder"), ("empty", "a folder without config.json"),
                      ("mute", "no tokenizer (")]:
        with pytest.raises(OSError, match="^" + re.escape(f"--hf {tmp_path / name}: {why}")):
            hf.load(str(tmp_path / name))


def test_an_interrupt_keeps_a_hugging_face_model_s_layers(llama, tmp_path, monkeypatch, capsys):
    from fovea_trace import command as program
    text = tmp_path / "rules.txt"
    text.write_text(TEXT, encoding="utf-8")

    def progress(self, layer, edges):
        if layer == 2:
            raise KeyboardInterrupt
    monkeypatch.setattr(program.Progress, "__call__", progress)
    words = [text, "--hf", llama, "--out", tmp_path / "out", "--tokens", 200]
    monkeypatch.setattr(sys, "argv", ["fovea-trace", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        program.main()
    assert left.value.code == 130
    assert capsys.readouterr().err.endswith("out holds the layers up to 1\n")
    with np.load(tmp_path / "out/trace.npz") as npz:
        assert len(npz["retained"]) == 2 and set(npz["edge"][:, 0]) == {0, 1}


@pytest.mark.parametrize(
    "words, why",
    [
        (["nowhere.txt"], "nowhere.txt: No such file"),
        ([__file__, "--beside", "nowhere.txt"], "nowhere.txt: No such file"),
        ([__file__, "--out", "/dev/null/trace"], "/dev/null/trace: Not a directory"),
        ([__file__, "--out", __file__], "test_trace_files.py: Not a directory"),
        ([__file__, "--beside", ""], "--beside is empty"),
        ([__file__, "--hf", ""], "--hf is empty"),
        ([__file__, "--keep", "0"], "--keep is 0, wanted 1 .. 256"),
        ([__file__, "--layers", "40"], "wanted layers of 0 .. 29"),
        ([__file__, "--layers", "x"], "wanted such as 0-3,7"),
        ([__file__, "--tokens", "99", "--tokens-of", "2"], "wanted a block of rows of 0 .. 1"),
        ([__file__, "--model", "/nope.gguf"], "/nope.gguf: No such file"),
        ([__file__, "--hf", "/nope", "--model", "x"], "--hf and --model are two models"),
        ([__file__, "--hf", "/nope"], "--hf"),
    ],
)
def test_the_command_says_what_is_wrong(words, why, tmp_path, monkeypatch, capsys):
    from fovea_trace import command as program
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fovea-trace", *words])
    with pytest.raises(SystemExit) as left:
        program.main()
    told = capsys.readouterr().err + str(left.value.code)
    assert left.value.code not in (0, None) and why in told
    assert not list(tmp_path.iterdir())


def test_help_says_each_default_once():
    told = run("--help").stdout
    assert "None" not in told and "False" not in told
    assert told.count("default: trace-TEXT") == told.count("default: 16") == 1
