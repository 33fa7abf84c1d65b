# SPDX-License-Identifier: Apache-2.0
"""A conversation on one cache: each turn reads its own new tokens, and none twice."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smollm import text

if TYPE_CHECKING:
    from smollm.model import Floats, Model
    from smollm.paged import PagedAttention
    from smollm.sample import Sampler
    from tokenizers import Tokenizer

CHUNK = 128  # tokens that are read in a step


class ContextFull(Exception):
    """The words do not fit into what is left of the context; the conversation is as it was."""


@dataclass
class Phase:
    """Steps of one kind: prefill or decode."""
    tokens: int = 0
    seconds: float = 0.0
    attention: float = 0.0  # of the seconds

    def __str__(self) -> str:
        part = self.attention / self.seconds
        return (f"{self.tokens} tokens, {self.tokens / self.seconds:.1f} tokens/s, "
                f"attention (fovea) {part:.0%}, the rest (NumPy) {1 - part:.0%}")


class Conversation:
    """model.Model, an attention with its cache, a tokenizer, a sampler."""

    def __init__(self, llm: Model, attention: PagedAttention, tokenizer: Tokenizer,
                 sampler: Sampler, system: str = text.SYSTEM) -> None:
        self.llm, self.attention, self.tokenizer = llm, attention, tokenizer
        self.sampler, self.system = sampler, system
        self.stops = {tokenizer.token_to_id(token) for token in text.STOPS}
        self.prefill, self.decode = Phase(), Phase()
        self.reset()

    def reset(self) -> None:
        self.attention.reset()
        self.unread = self.tokenizer.encode(text.message("system", self.system)).ids
        self.full = False

    def ask(self, words: str, most: int,
            progress: Callable[[int, int], object] = lambda done, total: None) -> Iterator[str]:
        """The answer's pieces, at most `most` tokens; `full` then tells if the context ended it."""
        logits = self.read(self.tokenizer.encode(text.question(words)).ids, progress)
        yield from self.answer(logits, most)

    def read(self, tokens: list[int], progress: Callable[[int, int], object]) -> Floats:
        tokens, room = self.unread + tokens, self.attention.capacity - self.attention.length
        if len(tokens) > room:
            raise ContextFull(f"{len(tokens)} tokens to read and room for {room} of the context's "
                              f"{self.attention.capacity}")
        self.unread = []
        for i in range(0, len(tokens), CHUNK):
            progress(i, len(tokens))
            logits = self.step(tokens[i:i + CHUNK], self.prefill)
        return logits

    def answer(self, logits: Floats, most: int) -> Iterator[str]:
        from tokenizers import decoders
        stream = decoders.DecodeStream(skip_special_tokens=True)
        self.full = False
        for count in range(1, most + 1):
            token = self.sampler(logits[-1])
            if token in self.stops:
                break
            yield stream.step(self.tokenizer, token) or ""
            self.unread = [token]
            if count == most:
                break
            if self.attention.length == self.attention.capacity:
                self.full = True
                break
            self.unread = []
            logits = self.step([token], self.decode)
        # The template ends every message like this, whatever ended the answer.
        self.unread += self.tokenizer.encode(f"{text.END}\n").ids

    def step(self, tokens: list[int], phase: Phase) -> Floats:
        started, before = time.perf_counter(), self.attention.seconds
        logits = self.llm.forward(tokens, self.attention)
        phase.seconds += time.perf_counter() - started
        phase.attention += self.attention.seconds - before
        phase.tokens += len(tokens)
        return logits
