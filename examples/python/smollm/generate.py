#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers with SmolLM2-135M-Instruct, word by word, attention by fovea: once, or in a conversation.

    python examples/python/smollm/generate.py "Why is the sky blue?" --tokens 64
    python examples/python/smollm/generate.py --chat
    cd examples/python && python -m smollm "Why is the sky blue?" """
from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports: no traceback

import argparse
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from smollm import text
from smollm.terminal import Parser, say, sentences  # what needs more is imported in run()

if TYPE_CHECKING:
    import fovea
    from smollm.conversation import Conversation
    from smollm.model import Config
    from tokenizers import Tokenizer

Args = argparse.Namespace

QUESTION = "Why is the sky blue? Answer in two sentences."
HELP = "/reset forgets the conversation, /quit ends it"


def main() -> None:
    with sentences("smollm"):
        args = arguments()
        if sys.stdout is None:
            raise SystemExit("smollm: standard output is closed, so there is nowhere to answer")
        run(args)


def run(args: Args) -> None:
    from smollm import model, weights
    from smollm.conversation import Conversation
    from smollm.paged import PagedAttention
    from smollm.sample import Sampler
    import fovea  # last: smollm finds it in a checkout

    started = time.perf_counter()
    say("reading the vocabulary of the weights ...")
    source = weights.open_weights(args.model)
    if source.template != text.TEMPLATE:
        raise SystemExit(f"smollm: {source.path} has another chat template than SmolLM2-Instruct")
    tokenizer = source.tokenizer()
    llm = model.load(source, lambda i, of: say(f"unpacking the weights: layer {i} of {of}"))
    say(f"loaded in {time.perf_counter() - started:.1f} s", done=True)

    sampler = Sampler(args.temperature, args.top_k, args.top_p, args.seed)
    with fovea.Context(args.backend, threads=args.threads) as ctx:
        capacity = room(args, llm.config, tokenizer)
        if args.linear:
            from smollm.transfer import attention_of
            attention = attention_of(llm, source, ctx, capacity, args)
        else:
            attention = PagedAttention(llm.config, capacity, ctx, args.dtype)
        talk = Conversation(llm, attention, tokenizer, sampler, args.system)
        if args.chat:
            chat(talk, args)
        else:
            answer(talk, args.prompt, args.tokens)
        report(talk, ctx, args)


def room(args: Args, config: Config, tokenizer: Tokenizer) -> int:
    """Tokens that the cache must hold; more than the model was trained for is refused."""
    if args.context > config.context:
        raise SystemExit(f"smollm: --context is {args.context}, wanted at most {config.context}, "
                         "which the model was trained for")
    most: int = args.context or config.context
    if args.chat:
        return most
    count = len(tokenizer.encode(text.chat(args.prompt, args.system)).ids)
    if count + args.tokens > most:
        raise SystemExit(f"smollm: a prompt of {count} tokens and --tokens {args.tokens} to come "
                         f"are more than the context of {most}")
    return count + int(args.tokens)


def answer(talk: Conversation, words: str, most: int) -> None:
    pieces = talk.ask(words, most, lambda i, of: say(f"reading: {i} of {of} tokens"))
    for i, piece in enumerate(pieces):
        if i == 0:
            say("")  # the progress goes, and what is answered stays
        print(piece, end="", flush=True)
    print(flush=True)


def chat(talk: Conversation, args: Args) -> None:
    """A question a line, until /quit or the end of the input."""
    from smollm.conversation import ContextFull
    say(f"SmolLM2 listens: {HELP}", done=True)
    for words in lines():
        if words == "/quit":
            return
        if words == "/reset":
            talk.reset()
            say("a new conversation", done=True)
        elif words.startswith("/"):
            say(f"smollm: {words.split()[0]} is no command: {HELP}", done=True)
        elif words:
            try:
                answer(talk, words, args.tokens)
            except ContextFull as why:
                say(f"smollm: the conversation is full ({why}): {HELP}", done=True)
            if talk.full:
                say("smollm: the answer ends here, the context of "
                    f"{talk.attention.capacity} tokens is full: {HELP}", done=True)


def lines() -> Iterator[str]:
    """Lines of standard input; a person at a terminal gets a mark and can edit."""
    if sys.stdin is None:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        yield from (line.strip() for line in sys.stdin)
        return
    import contextlib
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then edits lines
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return


def report(talk: Conversation, ctx: fovea.Context, args: Args) -> None:
    for name, phase in (("prefill", talk.prefill), ("decode", talk.decode)):
        if phase.tokens:
            say(f"{name}: {phase}", done=True)
    say(f"{talk.sampler}; {ctx!r}, {args.dtype}; kernels: "
        f"{', '.join(talk.attention.kernels) or 'none'}", done=True)


def arguments() -> Args:
    parser = Parser(
        prog="smollm", description="SmolLM2-135M-Instruct answers, attention by fovea.")
    option = parser.add_argument
    option("words", nargs="*", help=f'the prompt; default: "{QUESTION}"')
    option("--prompt", help="the prompt, instead of words")
    option("--chat", action="store_true",
           help=f"a conversation: a line of standard input is a turn, {HELP}")
    option("--system", default=text.SYSTEM, help="the system message")
    option("--tokens", type=int, default=256, help="most tokens of an answer")
    option("--context", type=int, default=0, help="tokens of a conversation; 0: what the model can")
    option("--temperature", type=float, default=0.0, help="of the draw; 0: the likeliest token")
    option("--top-k", type=int, default=0, help="draw from so many likeliest tokens; 0: from all")
    option("--top-p", type=float, default=1.0, help="draw from the likeliest that hold this share")
    option("--seed", type=int, help="the same seed gives the same answer; default: a random one")
    option("--backend", choices=["host", "cuda"], default="host", help="where attention runs")
    option("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of queries and cache")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--model", help="another GGUF file of this architecture")
    option("--linear", help="layers that keep 64 exact keys and a state of all older ones, as "
                            "5,10-12 or all; what they learn is kept in --linear-out")
    option("--linear-out", type=pathlib.Path, default=pathlib.Path("linear.out"),
           help="folder of features, table and plot of --linear")
    option("--features", type=int, default=64, help="of a head's query or key, with --linear")
    option("--steps", type=int, default=80, help="of training a layer, with --linear")
    option("--rate", type=float, default=0.03, help="of Adam; a cosine brings it to 0")
    option("--windows", type=int, default=8, help="of 512 tokens, to learn from")
    option("--held-out", type=int, default=2, help="windows to judge by")
    option("--held-tokens", type=int, default=1024, help="of a window to judge by")
    option("--state-tokens", type=int, default=8192, help="that are read to count bytes")
    words, _, rest = split_at("--", sys.argv[1:])  # Python 3.11 forgets what stood behind it
    args = parser.parse_intermixed_args(words)
    args.words += rest
    check(args, parser.error)
    return args


def split_at(mark: str, words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """What str.partition does, of a list."""
    at = words.index(mark) if mark in words else len(words)
    return words[:at], words[at:at + 1], words[at + 1:]


def check(args: Args, refuse: Callable[[str], object]) -> None:
    said = args.prompt is not None or bool(args.words)
    if args.prompt is not None and args.words:
        refuse("the prompt is given twice: as words and as --prompt")
    if args.chat and said:
        refuse("--chat takes its turns from standard input, and no prompt")
    prompt = args.prompt if args.prompt is not None else " ".join(args.words)
    if said and not prompt.strip():
        refuse("the prompt is empty")
    if args.model == "":
        refuse("--model is empty, wanted a GGUF file")
    args.prompt = (prompt if said else QUESTION).encode("utf-8", "replace").decode()
    args.system = args.system.encode("utf-8", "replace").decode()
    least_of = dict(tokens=1, context=0, threads=0, top_k=0, features=2, steps=1, windows=1,
                    held_out=1, held_tokens=2, state_tokens=2)
    for name, least in least_of.items():
        if getattr(args, name) < least:
            refuse(f"--{name.replace('_', '-')} is {getattr(args, name)}, wanted at least {least}")
    if args.features % 2:
        refuse(f"--features is {args.features}, wanted an even number")
    if args.linear == "":
        refuse("--linear is empty, wanted layers such as 5,10-12, or all")
    if not args.rate > 0:
        refuse(f"--rate is {args.rate:g}, wanted more than 0")
    if not 0 <= args.temperature < float("inf"):
        refuse(f"--temperature is {args.temperature}, wanted 0 or more")
    if not 0 < args.top_p <= 1:
        refuse(f"--top-p is {args.top_p}, wanted more than 0 and at most 1")
    if args.seed is not None and args.seed < 0:
        refuse(f"--seed is {args.seed}, wanted 0 or more")
    if args.temperature == 0:
        for name, off in (("seed", None), ("top_k", 0), ("top_p", 1)):
            if getattr(args, name) != off:
                refuse(f"--{name.replace('_', '-')} needs a --temperature above 0")


if __name__ == "__main__":
    main()
