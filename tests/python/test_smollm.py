# SPDX-License-Identifier: Apache-2.0
"""A real model on real text: fovea's attention on a paged cache against float64 NumPy in the same
decoder.  Everything but attention is the same code, so what differs is fovea's."""
import os
import pathlib
import subprocess
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import gguf  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
from smollm import model, text  # noqa: E402
from smollm.paged import PAGE, PagedAttention  # noqa: E402
from smollm.reference import ReferenceAttention  # noqa: E402

QUESTION = "Give three rules for writing clear error messages, with a short example. Is 2 + 2 = 4?"
TOKENS = 64
TOLERANCE = 2e-3  # of the logit range


@pytest.fixture(scope="module")
def reader():
    return gguf.GGUFReader(text.weights_path())


@pytest.fixture(scope="module")
def tokenizer(reader):
    return text.load_tokenizer(reader)


@pytest.fixture(scope="module")
def llm(reader):
    return model.load(reader)


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


def test_tokenizer_has_the_published_ids_and_the_file_its_template(reader, tokenizer, prompt):
    assert prompt[:24] == [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519,
                           28, 7018, 411, 407, 19712, 8182, 2, 198, 1, 4093, 198]
    assert tokenizer.decode(prompt, skip_special_tokens=False) == text.chat(QUESTION)
    assert tokenizer.encode("2024").ids == [tokenizer.token_to_id(digit) for digit in "2024"]
    template = reader.get_field("tokenizer.chat_template").contents()
    assert f"<|im_start|>system\n{text.SYSTEM}<|im_end|>" in template


def test_the_command_streams_an_answer(tokenizer):
    command = [sys.executable, str(EXAMPLES / "smollm/generate.py"),
               "--prompt", "What is the capital of France?", "--tokens", "12"]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "Paris" in ran.stdout
    assert "tokens/s" in ran.stderr and "attention_forward.host" in ran.stderr
