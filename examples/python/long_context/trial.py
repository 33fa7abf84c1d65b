# SPDX-License-Identifier: Apache-2.0
"""How good a method is on a text, beside dense attention.

The text is read twice: as it is, for the perplexity of its last tokens, and with a sentence planted
at each of five depths, which five questions ask for.  Both begin with one long piece of a prompt.
What follows is judged: the last tokens, or a question and its answer."""
from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import fovea
import numpy as np
from numpy.typing import NDArray

from long_context.methods import SAMPLE, Dense, Generated, Method
from long_context.methods import Prompt as Prompting
from long_context.seen import Recall
from long_context.step import Observer, Reading, Step, There
from smollm.model import Floats, Model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

JUDGED = 1024  # tokens at the end of the text
SPOKEN = 16  # generated for the time of a token
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
PLACES = ("harbour", "library", "observatory", "brewery", "monastery")
NUMBERS = ("48271", "93650", "17482", "60539", "25914")
SENTENCE = "\n\nThe secret number of the {} is {}. Remember it.\n\n"
QUESTION = "\n\nWhat was the secret number of the {}? It is"

Tell = Callable[[str], object]


class Texts(NamedTuple):
    """Tokens.  `head` and `tail` are the text; `planted` has the sentences; `sample` is what
    methods learn from."""

    head: list[int]
    tail: list[int]
    planted: list[int]
    questions: list[list[int]]
    answers: list[list[int]]
    sample: list[int]


def texts(text: str, length: int, tokenizer: Tokenizer) -> Texts:
    def encode(words: str) -> list[int]:
        return list(tokenizer.encode(words).ids)

    ids = encode(text)
    if len(ids) < length + SAMPLE:
        raise SystemExit(
            f"long_context: --length {length} and {SAMPLE} tokens to learn from are more than the "
            f"{len(ids)} of the text: lower --length, or give a longer --text")
    sentences = [encode(SENTENCE.format(*both)) for both in zip(PLACES, NUMBERS)]
    questions = [encode(QUESTION.format(place)) for place in PLACES]
    answers = [encode(" " + number) for number in NUMBERS]
    longest = max(map(len, questions)) + max(map(len, answers))
    room = length - sum(map(len, sentences)) - longest
    planted, last = list[int](), 0
    for depth, sentence in zip(DEPTHS, sentences):
        at = int(depth * room)
        planted += [*ids[last:at], *sentence]
        last = at
    planted += ids[last:room]
    return Texts(ids[:length - JUDGED], ids[length - JUDGED:length], planted, questions, answers,
                 ids[length:length + SAMPLE])


@dataclasses.dataclass
class Row:
    """A method's line of the table.  None: it cannot be told."""

    method: str
    paper: str
    perplexity: float
    kl: float  # nats, mean over the judged tokens
    recall: float | None
    answer: float  # log-probability of an answer, mean
    hits: str  # by depth: 1 where every token of the answer is the likeliest
    keys: float | None  # share of those that a row may see
    prefill: float  # tokens a second
    decode: float
    prefill_attention: float  # the same, of attention alone
    decode_attention: float
    note: str


class Prompt(NamedTuple):
    """A text as far as a method's prompt goes."""

    reading: Reading
    logits: Floats  # after its last token
    seconds: float
    attention: float  # of these
    states: dict[str, Any]  # of each method that keeps something beside the cache
    more: dict[str, float]  # seconds that this took


class Trial:
    """All methods on one text."""

    def __init__(self, llm: Model, ctx: fovea.Context, made: Texts, dtype: str, tell: Tell) -> None:
        self.llm, self.ctx, self.texts, self.dtype, self.tell = llm, ctx, made, dtype, tell
        longest = max(len(made.head) + len(made.tail), len(made.planted) + 64, len(made.sample))
        self.capacity = longest + SPOKEN
        self.dense_logits: Floats
        self.prompts: list[Prompt]

    def prepare(self, methods: Sequence[Method]) -> None:
        """Dense attention reads what methods learn from, and the prompts of all that share them."""
        sample = self.texts.sample
        for name, tokens in (("text", sample), ("twice", 2 * sample[:len(sample) // 2])):
            if learners := [m.learn for m in methods if m.learns == name]:
                self.prompt(Dense(1, 0), tokens, "learning from other text", learners)
        kept = [m for m in methods if m.starts]
        self.prompts = [self.shared(tokens, kept, what) for tokens, what in (
            (self.texts.head, "the text"), (self.texts.planted, "the text with sentences"))]

    def shared(self, tokens: Sequence[int], kept: Sequence[Method], what: str) -> Prompt:
        """What dense attention reads, and what methods keep of it beside the cache."""
        more = dict.fromkeys((m.name for m in kept), 0.0)

        def watch(method: Method) -> Observer:
            def start(step: Step, o: There) -> None:
                started = time.perf_counter()
                method.start(step, o)
                more[method.name] += time.perf_counter() - started
            return start

        made = self.prompt(Dense(1, 0), tokens, f"dense: {what}", [watch(m) for m in kept])
        states = {m.name: m.state for m in kept}
        for m in kept:
            m.state = {}
        return made._replace(seconds=made.seconds - sum(more.values()), states=states, more=more)

    def prompt(self, method: Method, tokens: Sequence[int], what: str,
               observers: Sequence[Observer] = ()) -> Prompt:
        reading = self.reading(method, what)
        reading.observers = list(observers)
        started = time.perf_counter()
        logits = self.llm.forward(tokens, reading)
        reading.observers = []
        return Prompt(reading, logits, time.perf_counter() - started, reading.seconds, {}, {})

    def reading(self, method: Method, what: str) -> Reading:
        layers = self.llm.config.layers
        return Reading(self.llm.config, self.capacity, self.ctx, method, self.dtype,
                       lambda layer: self.tell(f"{what}: layer {layer + 1} of {layers}"))

    def run(self, method: Method) -> Row:
        text = self.begun(method, 0)
        recall = Recall()
        text.reading.observers = [recall]
        logits = self.read(text.reading, self.texts.tail, isinstance(method, Prompting))
        text.reading.observers = []
        spoken = self.speak(text.reading, int(logits[-1].argmax()))
        text.reading.rewind(len(self.texts.head))
        logits = np.concatenate([text.logits, logits[:-1]])
        if isinstance(method, Dense):
            self.dense_logits = logits
        answers = self.ask(self.begun(method, 1).reading, isinstance(method, Prompting))
        n, more = len(self.texts.head), text.more.get(method.name, 0.0)
        return Row(
            method.name, method.paper, math.exp(nats(logits, self.texts.tail).mean()),
            divergence(self.dense_logits, logits), mean(recall.found),
            float(np.mean([answer for answer, _ in answers])),
            "".join(str(int(hit)) for _, hit in answers),
            mean(recall.read), n / (text.seconds + more),
            SPOKEN / spoken[0], n / (text.attention + more), SPOKEN / spoken[1], method.note)

    def begun(self, method: Method, i: int) -> Prompt:
        """The text, or the one with sentences, as far as the prompt goes.  Methods that read
        prompts as dense attention does go on from what it read."""
        if not isinstance(method, Generated | Dense):
            return self.prompt(method, (self.texts.head, self.texts.planted)[i], method.name)
        shared = self.prompts[i]
        shared.reading.method = method
        method.state = shared.states.get(method.name, {})
        return shared

    def read(self, reading: Reading, tokens: Sequence[int], prompt: bool) -> Floats:
        """Logits after each of these tokens."""
        reading.prompt = prompt
        most = 0 if prompt else reading.method.most_rows
        return np.concatenate([
            self.llm.forward(tokens[i:i + (most or len(tokens))], reading, every=True)
            for i in range(0, len(tokens), most or len(tokens))])

    def speak(self, reading: Reading, token: int) -> tuple[float, float]:
        """(seconds, attention's of these) of tokens that are generated one by one."""
        reading.prompt, before, started = False, reading.seconds, time.perf_counter()
        for _ in range(SPOKEN):
            token = int(self.llm.forward([token], reading)[-1].argmax())
        return time.perf_counter() - started, reading.seconds - before

    def ask(self, reading: Reading, prompt: bool) -> list[tuple[float, bool]]:
        """(log-probability of the answer, is it what the model would say) of each question."""
        out, n = list[tuple[float, bool]](), reading.length
        state = reading.method.state
        for question, answer in zip(self.texts.questions, self.texts.answers):
            if reading.method.most_rows:
                reading.method.state = {i: copies(self.ctx, kept) for i, kept in state.items()}
            logits = self.read(reading, question, prompt)[-1:]
            if len(answer) > 1:
                logits = np.concatenate([logits, self.read(reading, answer[:-1], False)])
            out.append((float(-nats(logits, answer).sum()),
                        logits.argmax(axis=1).tolist() == answer))
            reading.rewind(n)
        return out


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def copies(ctx: fovea.Context, kept: dict[str, Any]) -> dict[str, Any]:
    out = dict[str, Any]()
    for name, y in kept.items():
        if isinstance(y, np.ndarray):
            out[name] = y.copy()
        else:
            out[name] = ctx.empty(y.shape, y.dtype)
            ctx.copy(out[name], y)
    return out


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    y = logits.astype(np.float64)
    y -= y.max(axis=1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=1, keepdims=True))
    return y


def nats(logits: Floats, tokens: Sequence[int]) -> NDArray[np.float64]:
    """-log p of each token, by the logits that precede it."""
    return np.concatenate([-log_softmax(logits[i:i + 1])[:, token]
                           for i, token in enumerate(tokens)])


def divergence(dense: Floats, other: Floats) -> float:
    """Mean over the rows of KL(dense || other)."""
    total = 0.0
    for i in range(0, len(dense), 64):
        p, r = log_softmax(dense[i:i + 64]), log_softmax(other[i:i + 64])
        total += float((np.exp(p) * (p - r)).sum())
    return total / len(dense)
