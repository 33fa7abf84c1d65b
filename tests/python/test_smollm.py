# SPDX-License-Identifier: Apache-2.0
"""A real model on real text: fovea's attention on a paged cache against float64 NumPy in the same
decoder.  Everything but attention is the same code, so what differs is fovea's."""
import contextlib
import os
import pathlib
import pty
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
from smollm import model, text, weights  # noqa: E402
from smollm.conversation import ContextFull, Conversation  # noqa: E402
from smollm.paged import PAGE, PagedAttention  # noqa: E402
from smollm.reference import ReferenceAttention  # noqa: E402
from smollm.sample import Sampler  # noqa: E402

QUESTION = "Give three rules for writing clear error messages, with a short example. Is 2 + 2 = 4?"
TOKENS = 64
TOLERANCE = 2e-3  # of the logit range


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Opened twice: read from the file, then from the index that the first left."""
    cache = tmp_path_factory.mktemp("index")
    first = weights.open_weights(cache=cache)
    (kept,) = cache.iterdir()
    when = kept.stat().st_mtime_ns
    second = weights.open_weights(cache=cache)
    assert second.index == first.index and kept.stat().st_mtime_ns == when
    return second


@pytest.fixture(scope="module")
def tokenizer(source):
    return source.tokenizer()


@pytest.fixture(scope="module")
def llm(source):
    return model.load(source)


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer.encode(text.chat(QUESTION)).ids


def greedy(llm, prompt, attention):
    """Logits after each prompt token, and the tokens chosen from there."""
    logits = last = llm.forward(prompt, attention, every=True)
    tokens = [int(last[-1].argmax())]
    while len(tokens) < TOKENS:
        last = llm.forward(tokens[-1:], attention)
        tokens.append(int(last[-1].argmax()))
    return logits, tokens


@pytest.fixture(scope="module")
def wanted(llm, prompt):
    return greedy(llm, prompt, ReferenceAttention(llm.config))


def assert_close(got, want):
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= TOLERANCE * (want.max() - want.min())


def test_logits_and_greedy_tokens_agree(ctx, llm, prompt, wanted):
    attention = PagedAttention(llm.config, len(prompt) + TOKENS, ctx)
    logits, tokens = greedy(llm, prompt, attention)
    assert_close(logits, wanted[0])
    assert tokens == wanted[1]
    assert [kernel.split(".")[:2] for kernel in attention.kernels] == [
        ["rope_forward", "host"], ["cache_append", "host"], ["attention_forward", "host"]]


def test_prefill_in_pieces_that_straddle_pages(ctx, llm, prompt, wanted):
    attention = PagedAttention(llm.config, len(prompt), ctx)
    step = PAGE + 3
    pieces = [llm.forward(prompt[i:i + step], attention, every=True)
              for i in range(0, len(prompt), step)]
    assert len(pieces) > 2
    assert_close(np.concatenate(pieces), wanted[0])


def test_unused_pages_and_slots_do_not_count(ctx, llm, prompt):
    logits = []
    for fill in (0.0, np.nan):
        attention = PagedAttention(llm.config, len(prompt) + PAGE, ctx)
        for pool in attention.k + attention.v:
            attention.ctx.copy(pool, np.full(pool.shape, fill, np.float32))
        logits.append(llm.forward(prompt, attention))
    assert logits[0].tobytes() == logits[1].tobytes()


def test_tokenizer_has_the_published_ids_and_the_file_its_template(source, tokenizer, prompt):
    assert prompt[:24] == [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519,
                           28, 7018, 411, 407, 19712, 8182, 2, 198, 1, 4093, 198]
    assert tokenizer.decode(prompt, skip_special_tokens=False) == text.chat(QUESTION)
    assert tokenizer.encode("2024").ids == [tokenizer.token_to_id(digit) for digit in "2024"]
    assert source.template == text.TEMPLATE
    assert text.chat("Hi") == (f"<|im_start|>system\n{text.SYSTEM}<|im_end|>\n"
                               "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_the_template_is_what_jinja_makes_of_it(source):
    jinja2 = pytest.importorskip("jinja2")
    turns = [("user", "Hi"), ("assistant", "Hello {{ x }}"), ("user", "Bye")]
    messages = [dict(role=role, content=words) for role, words in turns]
    want = jinja2.Template(source.template).render(messages=messages, add_generation_prompt=True)
    said = "".join(text.message(*turn) for turn in [("system", text.SYSTEM), *turns[:-1]])
    assert said + text.question("Bye") == want


class Recorded:
    """The model, and every token that it was given."""

    def __init__(self, llm):
        self.llm, self.read = llm, []

    def forward(self, tokens, attention):
        self.read += tokens
        return self.llm.forward(tokens, attention)


def test_a_conversation_reads_every_token_once_and_is_the_whole_template(ctx, llm, tokenizer):
    seen = Recorded(llm)
    attention = PagedAttention(llm.config, 256, ctx)
    talk = Conversation(seen, attention, tokenizer, Sampler(), system="Be brief.")
    questions = ["What is the capital of France?", "And of Italy?"]
    answers = [list(talk.ask(words, 7)) for words in questions]
    assert "Paris" in "".join(answers[0]) and len(answers[1]) == 7  # the second is cut short
    want = text.message("system", "Be brief.")
    for words, said in zip(questions, answers):
        want += text.question(words) + "".join(said) + f"{text.END}\n"
    # All but the end of the last answer was read, in order; the cache has no more than that.
    assert seen.read + talk.unread == tokenizer.encode(want).ids
    assert attention.length == len(seen.read)
    assert talk.prefill.tokens + talk.decode.tokens == len(seen.read)
    assert 0 < talk.decode.attention < talk.decode.seconds
    # The cache gives what one reading of everything gives.
    last = llm.forward(talk.unread, attention)
    whole = llm.forward(seen.read + talk.unread, PagedAttention(llm.config, 256, ctx))
    assert_close(last, whole)
    talk.reset()
    assert attention.length == 0 and len(attention.free) == 256 // PAGE
    del seen.read[:]
    assert list(talk.ask(questions[0], 7)) == answers[0]
    assert tokenizer.decode(seen.read, skip_special_tokens=False).startswith("<|im_start|>system")


def test_a_full_context_ends_an_answer_and_refuses_a_question(ctx, llm, tokenizer):
    attention = PagedAttention(llm.config, 40, ctx)
    talk = Conversation(llm, attention, tokenizer, Sampler(), system="Be brief.")
    said = list(talk.ask("Tell me of Rome.", 100))
    assert talk.full and attention.length == attention.capacity and len(said) > 5
    with pytest.raises(ContextFull, match="room for 0 of the context's 40"):
        list(talk.ask("Go on.", 5))
    talk.reset()
    assert list(talk.ask("Tell me of Rome.", 5)) == said[:5] and not talk.full


def test_a_sampler_draws_as_its_probabilities_say():
    logits = np.log(np.array([0.1, 0.5, 0.15, 0.25], np.float32))
    assert [Sampler()(logits) for _ in range(3)] == [1] * 3
    kept = lambda **fields: dict(zip(*(x.tolist() for x in Sampler(  # noqa: E731
        1.0, **fields).candidates(logits))))
    assert kept() == pytest.approx({1: 0.5, 3: 0.25, 2: 0.15, 0: 0.1})
    assert kept(top_k=2) == pytest.approx({1: 2 / 3, 3: 1 / 3})
    assert kept(top_p=0.6) == pytest.approx({1: 2 / 3, 3: 1 / 3})
    assert list(kept(top_p=1e-9)) == [1]
    tokens, p = Sampler(0.5).candidates(logits)
    assert p == pytest.approx(np.array([0.25, 0.0625, 0.0225, 0.01]) / 0.345)
    draw = Sampler(1.0, seed=5)
    drawn = [draw(logits) for _ in range(4000)]
    assert np.bincount(drawn, minlength=4) / 4000 == pytest.approx([0.1, 0.5, 0.15, 0.25], abs=0.03)
    again, other = Sampler(1.0, seed=5), Sampler(1.0)
    assert [again(logits) for _ in range(50)] == drawn[:50]
    repeated = Sampler(1.0, seed=other.seed)
    assert [other(logits) for _ in range(50)] == [repeated(logits) for _ in range(50)]
    for wrong in (dict(temperature=-1), dict(top_k=-1), dict(top_p=0), dict(top_p=1.1),
                  dict(seed=-1), dict(temperature=np.nan)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*, wanted"):
            Sampler(**wrong)


def start(*arguments, **fields):
    environment = {**os.environ, "PYTHONUTF8": "1"}
    return subprocess.Popen([sys.executable, str(EXAMPLES / "smollm/generate.py"), *arguments],
                            text=True, env=environment, **fields)


def run(*arguments, **fields):
    with start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
               stdin=subprocess.PIPE) as started:
        out, told = started.communicate(**fields)
    assert "Traceback" not in told
    return started.returncode, out, told


def test_the_command_streams_an_answer():
    code, out, told = run("What is the capital", "--tokens", "12", "of France?")
    assert code == 0 and "Paris" in out
    for phase in ("prefill: ", "decode: "):
        assert phase in told
    assert told.count("attention (fovea)") == 2 and "attention_forward.host" in told
    assert "greedy" in told


def test_an_answer_stays_on_a_terminal():
    """Progress and answer share the terminal: what clears the one leaves the other."""
    ours, theirs = pty.openpty()
    with start("--tokens", "8", "What is the capital of France?", stdout=theirs, stderr=theirs,
               stdin=theirs) as started:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    line = next(x for x in re.split(rb"\r\n|\r", shown) if b"Paris" in x)
    assert started.returncode == 0 and line == b"\x1b[KThe capital of France is Paris."


def test_the_command_converses_by_a_pipe():
    code, out, told = run("--chat", "--tokens", "9", "--temperature", "0.5", "--seed", "3",
                          input="Hello.\n/what\n\n/reset\nHello.\n/quit\nnever read\n")
    assert code == 0
    assert len([line for line in out.split("\n") if line]) >= 2 and "/" not in out
    assert "/what is no command" in told and "a new conversation" in told
    assert "temperature 0.5, seed 3" in told


def broken(tmp_path, name):
    path = tmp_path / name
    whole = open(text.weights_path(), "rb").read(4_000_000)
    path.write_bytes({"short": whole, "tiny": whole[:900], "empty": b"", "other": b"# no"}[name])
    return path


@pytest.mark.parametrize("name", ["short", "tiny", "empty", "other"])
def test_a_broken_file_is_a_sentence(tmp_path, name):
    with pytest.raises(weights.BadWeights, match=f"{name} is not a complete GGUF file"):
        weights.open_weights(broken(tmp_path, name), cache=tmp_path / "index")


def test_help_needs_nothing_installed():
    bare = [sys.executable, "-S", "-E", str(EXAMPLES / "smollm/generate.py"), "--help"]
    ran = subprocess.run(bare, capture_output=True, text=True, env={})
    assert ran.returncode == 0 and "--chat" in ran.stdout and "None" not in ran.stdout


@pytest.mark.parametrize("words, why", [
    (["--prompt", ""], "the prompt is empty"),
    ([""], "the prompt is empty"),
    (["a", "--prompt", "b"], "given twice"),
    (["--chat", "a"], "--chat takes its turns from standard input"),
    (["--tokens", "0"], "--tokens is 0, wanted at least 1"),
    (["--seed", "1"], "--seed needs a --temperature above 0"),
    (["--temperature", "-1"], "--temperature is -1.0, wanted 0 or more"),
    (["--context", "9000", "a"], "wanted at most 8192"),
    (["--context", "20", "a"], "more than the context of 20"),
    (["--model", "", "a"], "--model is empty"),
    (["--model", "/nope.gguf", "a"], "/nope.gguf: No such file or directory"),
])
def test_the_command_says_what_is_wrong(words, why, monkeypatch, capsys):
    from smollm import generate
    monkeypatch.setattr(sys, "argv", ["smollm", *words])
    monkeypatch.setattr(model, "load", lambda source, progress: FakeModel(source))
    with pytest.raises(SystemExit) as left:
        generate.main()
    told = capsys.readouterr().err + str(left.value.code)
    assert left.value.code not in (0, None) and why in told


@pytest.mark.parametrize("words, prompt, tokens", [
    (["--", "--tokens"], "--tokens", 256),
    (["--tokens", "3", "a", "--", "-b", "--"], "a -b --", 3),
    (["a", "--tokens", "3", "b"], "a b", 3),
])
def test_words_behind_two_dashes_are_the_prompt(words, prompt, tokens, monkeypatch):
    from smollm import generate
    monkeypatch.setattr(sys, "argv", ["smollm", *words])
    args = generate.arguments()
    assert (args.prompt, args.tokens) == (prompt, tokens)


class FakeModel:
    """Enough of a model for what is refused before it runs."""

    def __init__(self, source):
        self.config = model.Config(**source.fields)


def test_an_interrupt_and_a_closed_pipe_are_sentences():
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with start("--tokens", "2000", "Tell me a long story.", **pipes) as one, \
            start("--tokens", "2000", "Tell me a long story.", **pipes) as two:
        assert one.stdout.read(1) and two.stdout.read(1)  # they answer
        one.send_signal(signal.SIGINT)
        two.stdout.close()
        assert one.wait(60) == 130 and two.wait(60) == 1
        told = one.stderr.read(), two.stderr.read()
    assert told[0].endswith("smollm: interrupted\n")
    assert told[1].endswith("smollm: whoever read the output has closed it\n")
    assert "Traceback" not in "".join(told)
