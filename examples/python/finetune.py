#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes SmolLM2-135M with Hugging Face transformers, attention by fovea.

    python examples/python/finetune.py --steps 30 --out finetune.png

The text is cut into pieces at its blank lines.  Pieces stand behind one another in one row of
--tokens tokens, and position_ids begin again with each: that is how transformers is told of packed
sequences, and fovea's varlen attention lets no piece see another.  The loss is the next token's.

`--compare` trains twice from the same weights, with fovea and with torch's SDPA, and prints the
largest difference between the two curves."""

import argparse
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Sequence

if importlib.util.find_spec("fovea") is None:  # not installed: this checkout's binding
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are a file
try:
    import matplotlib
    import torch
    import transformers
    from smollm import text
    from smollm.terminal import say
    from smollm.weights import open_weights
    from tokenizers import Tokenizer
    import fovea.transformers
except ModuleNotFoundError as why:
    raise SystemExit(
        f"finetune: {why}: pip install torch transformers gguf tokenizers matplotlib"
    ) from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

Args = argparse.Namespace
Row = tuple[torch.Tensor, torch.Tensor, int]  # input_ids, position_ids, pieces in it
Run = tuple[list[float], float, str, str]  # losses, tokens a second, texts before and after
PROMPT = "A for loop in Python"
COLORS = {"fovea": "#1b7f79", "sdpa": "#c2703d"}


def pieces(path: pathlib.Path | None, tokenizer: Tokenizer, most: int) -> list[list[int]]:
    """The text's paragraphs as tokens, several short ones together, none longer than `most`."""
    if path:
        whole = path.read_text(encoding="utf-8")
    else:  # the reference of the Python language, which every Python has (PSF licence)
        from pydoc_data.topics import topics

        whole = "\n\n".join(topics.values())
    out, now = list[list[int]](), list[int]()
    for paragraph in dict.fromkeys(p for p in whole.split("\n\n") if p.strip()):
        now += tokenizer.encode(paragraph + "\n\n").ids
        while len(now) > most // 8:
            out.append(now[:most])
            now = now[most:]
    return out + ([now] if len(now) > 1 else [])


def pack(pieces: Sequence[list[int]], steps: int, length: int, seed: int) -> list[Row]:
    """For each step (input_ids, position_ids), both (1, length), and how many pieces are in it."""
    generator = torch.Generator().manual_seed(seed)
    rows, queue = list[Row](), list[int]()
    while len(rows) < steps:
        ids, places, count = list[int](), list[int](), 0
        while len(ids) < length:
            queue = queue or torch.randperm(len(pieces), generator=generator).tolist()
            piece = pieces[queue.pop()][: length - len(ids)]
            ids += piece
            places += range(len(piece))
            count += 1
        rows.append((torch.tensor([ids]), torch.tensor([places]), count))
    return rows


class Trainer:
    """The model, and its weights as they were."""

    def __init__(self, args: Args) -> None:
        path = pathlib.Path(args.model or text.weights_path())
        say("unpacking the weights")
        transformers.utils.logging.disable_progress_bar()
        fovea.transformers.register()
        self.args = args
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=getattr(torch, args.dtype)
        ).to(args.device)
        self.first = {k: x.clone() for k, x in self.model.state_dict().items()}

    def run(self, attention: str, rows: Sequence[Row], tokenizer: Tokenizer) -> Run:
        """Trains from the first weights: losses, tokens a second, texts before and after."""
        args, model = self.args, self.model
        model.load_state_dict(self.first)
        model.set_attn_implementation(attention)
        before = self.complete(tokenizer)
        model.train()
        adam = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.0)
        losses, started, warm = list[float](), time.perf_counter(), 0.0
        for step, (ids, places, _) in enumerate(rows, 1):
            labels = ids.masked_fill(places == 0, -100)  # no piece foretells the next
            inputs = {"input_ids": ids, "position_ids": places, "labels": labels}
            loss = model(**{k: x.to(args.device) for k, x in inputs.items()}, use_cache=False).loss
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            losses.append(loss.item())
            now = time.perf_counter() - started
            warm = warm or now  # the first step is not counted among the tokens a second
            left = now / step * (len(rows) - step)
            where = f"{attention}: step {step} of {len(rows)}"
            say(f"{where}, loss {losses[-1]:.4f}, {left:.0f} s left")
        say(f"{attention}: {len(rows)} steps in {now:.1f} s", done=True)
        speed = args.tokens * (len(rows) - 1) / (now - warm) if len(rows) > 1 else args.tokens / now
        return losses, speed, before, self.complete(tokenizer)

    def complete(self, tokenizer: Tokenizer) -> str:
        ids = torch.tensor([tokenizer.encode(self.args.prompt).ids], device=self.args.device)
        self.model.eval()
        made = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.args.generate,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
        return tokenizer.decode(made[0].tolist())


def draw(runs: dict[str, Run], args: Args) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for (name, (losses, *_)), style in zip(runs.items(), ("-", "--")):
        axes.plot(range(1, len(losses) + 1), losses, style, color=COLORS[name], label=name)
    axes.set(title="fine-tuning SmolLM2-135M", xlabel="step", ylabel="loss, nats a token")
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend()
    figure.savefig(args.out, dpi=110)
    plt.close(figure)


def arguments(argv: Sequence[str] | None) -> Args:
    parser = argparse.ArgumentParser(
        prog="finetune",
        description="Fine-tunes SmolLM2-135M with transformers, attention by fovea.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--steps", type=int, default=30)
    option("--tokens", type=int, default=512, help="in a step: pieces of text behind one another")
    option("--attn", choices=["fovea", "sdpa"], default="fovea")
    option("--compare", action="store_true", help="trains with both, and compares the losses")
    option("--rate", type=float, default=1e-4, help="of AdamW")
    option("--prompt", default=PROMPT, help="continued before and after")
    option("--generate", type=int, default=24, help="tokens to continue by")
    return checked(parser, argv, "finetune.png")


def checked(parser: argparse.ArgumentParser, argv: Sequence[str] | None, out: str) -> Args:
    """The arguments, with those of both examples.  What cannot work is told before the work."""
    option = parser.add_argument
    option("--device", default="cpu", help="cpu, cuda or cuda:1")
    option("--dtype", choices=["float32", "bfloat16"], default="float32")
    option("--out", type=pathlib.Path, default=out, help="the plot: .png, .svg or .pdf")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    option("--model", type=pathlib.Path, help="another GGUF file that transformers reads")
    option("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    for name in ("steps", "generate"):
        if getattr(args, name, 1) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.tokens < 16:
        parser.error(f"--tokens must be at least 16, got {args.tokens}")
    for name in ("text", "model"):
        path = getattr(args, name)
        if path and not path.is_file():
            parser.error(f"--{name} {path}: no such file")
    try:
        torch.empty(1, device=args.device)
    except (RuntimeError, AssertionError) as why:
        parser.error(f"--device {args.device}: {str(why).splitlines()[0]}")
    if args.out.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--out {args.out}: wanted a .png, .svg or .pdf file")
    try:  # before the work
        new = not args.out.exists()
        args.out.open("ab").close()
        if new:
            args.out.unlink()
    except OSError as why:
        parser.error(f"--out {args.out}: {why.strerror}")
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, Run]:
    args = arguments(argv)
    try:
        tokenizer = open_weights(args.model).tokenizer()
        rows = pack(pieces(args.text, tokenizer, args.tokens), args.steps, args.tokens, args.seed)
        trainer = Trainer(args)
        names = ("fovea", "sdpa") if args.compare else (args.attn,)
        runs = {name: trainer.run(name, rows, tokenizer) for name in names}
        draw(runs, args)
    except KeyboardInterrupt:
        raise SystemExit("\nfinetune: stopped, nothing is written") from None
    except (ValueError, OSError, UnicodeError, fovea.FoveaError) as why:
        raise SystemExit(f"finetune: {why}") from None
    count = sum(row[2] for row in rows)
    print(f"{args.steps} steps of {args.tokens} tokens in {count} packed pieces")
    for name, (losses, speed, before, after) in runs.items():
        print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {speed:.0f} tokens/s")
        print(f"  before: {before!r}\n  after:  {after!r}")
    if args.compare:
        pairs = list(zip(runs["fovea"][0], runs["sdpa"][0]))
        most = max(abs(a - b) for a, b in pairs)
        print(f"largest difference of the two losses: {most:.2e} nats, "
              f"{max(abs(a - b) / abs(b) for a, b in pairs):.1e} of the loss")
    print(args.out)
    return runs


if __name__ == "__main__":
    main()
