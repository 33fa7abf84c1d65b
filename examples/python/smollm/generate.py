#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers a prompt with SmolLM2-135M-Instruct, word by word, attention by fovea.

    python examples/python/smollm/generate.py --prompt "Why is the sky blue?" --tokens 64
    cd examples/python && python -m smollm "Why is the sky blue?" """
import argparse
import pathlib
import sys
import time

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import gguf
from tokenizers import decoders

from smollm import model, text
from smollm.paged import PagedAttention
import fovea  # last: smollm finds it in a checkout

CHUNK = 128  # prompt tokens a step


def main():
    args = arguments()
    try:
        ctx = fovea.Context(args.backend, threads=args.threads)
    except fovea.FoveaError as why:
        raise SystemExit(f"smollm: {why}") from None

    started = time.perf_counter()
    say("reading the index and vocabulary of the weights ...")
    reader = gguf.GGUFReader(args.model or text.weights_path())
    tokenizer = text.load_tokenizer(reader)
    llm = model.load(reader, lambda i, of: say(f"unpacking the weights: layer {i} of {of}"))
    say(f"loaded in {time.perf_counter() - started:.1f} s", done=True)

    prompt = tokenizer.encode(text.chat(args.prompt, args.system)).ids
    capacity, most = len(prompt) + args.tokens, llm.config.context
    if capacity > most:
        raise SystemExit(f"smollm: a prompt of {len(prompt)} tokens and {args.tokens} to come are "
                         f"more than the {most} that the model was trained for")
    attention = PagedAttention(llm.config, capacity, ctx, args.dtype)

    started = time.perf_counter()
    for i in range(0, len(prompt), CHUNK):
        say(f"reading the prompt: {i} of {len(prompt)} tokens")
        logits = llm.forward(prompt[i:i + CHUNK], attention)
    prefill = time.perf_counter() - started
    say("")

    stops = {tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")}
    stream = decoders.DecodeStream(skip_special_tokens=True)
    started = time.perf_counter()
    for count in range(1, args.tokens + 1):
        token = int(logits[-1].argmax())
        if token in stops:
            break
        print(stream.step(tokenizer, token) or "", end="", flush=True)
        if count < args.tokens:
            logits = llm.forward([token], attention)
    decode = time.perf_counter() - started
    print(flush=True)

    say(f"prefill {len(prompt)} tokens, {len(prompt) / prefill:.1f} tokens/s; "
        f"decode {count} tokens, {count / decode:.1f} tokens/s", done=True)
    say(f"backend {ctx!r}, {args.dtype}, kernels: {', '.join(attention.kernels)}", done=True)


def arguments():
    parser = argparse.ArgumentParser(
        prog="smollm", description="SmolLM2-135M-Instruct answers, attention by fovea.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("words", nargs="*", help="the prompt, if --prompt is not given")
    option("--prompt")
    option("--system", default=text.SYSTEM, help="the system message")
    option("--tokens", type=int, default=256, help="most tokens to generate")
    option("--backend", choices=["host", "cuda"], default="host", help="where attention runs")
    option("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of queries and cache")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--model", help="another GGUF file of this architecture")
    args = parser.parse_args()
    args.prompt = args.prompt or " ".join(args.words) or "Why is the sky blue?"
    if args.tokens < 1:
        parser.error("--tokens must be at least 1")
    return args


def say(line, done=False):
    """A line of progress.  On a terminal the next overwrites it, unless it is done; elsewhere only
    one in two seconds is written."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if done else "", file=sys.stderr, flush=True)
    elif line and (done or time.perf_counter() - say.last > 2):
        say.last = time.perf_counter()
        print(line, file=sys.stderr, flush=True)


say.last = -2.0


if __name__ == "__main__":
    main()
