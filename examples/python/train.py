#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on the bytes of a text, attention by fovea, forward and backward.

    examples/python/train.py                     # this folder's README.md, on the CPU, half a minute
    examples/python/train.py TEXT --device cuda --steps 2000

Prints the loss in bits a byte: 8 before training, and less than a text's own 4 to 5 when pairs of
bytes are learned.  --torch trains the same model on torch's scaled_dot_product_attention."""

import argparse
import pathlib
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import fovea.torch  # noqa: E402

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v to o, each (b, s, heads, d)
WIDTH, HEADS, KEY_HEADS, LAYERS, LENGTH, BATCH = 128, 8, 2, 3, 128, 8


class Layer(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend, self.d = attend, WIDTH // HEADS
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * self.d)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.d))
        q, k, v = heads.split((HEADS, KEY_HEADS, KEY_HEADS), dim=2)  # views: nothing is copied
        x = x + self.out(self.attend(q, k, v).flatten(2))
        y: Tensor = self.mlp(self.norms[1](x))
        return x + y


class Model(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[Layer(attend) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        scores: Tensor = self.head(self.layers(x))
        return scores


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fovea.torch.attention(q, k, v, causal=True)


def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return o.transpose(1, 2)


def train(data: bytes, steps: int, device: str, attend: Attend = ours,
          report: Callable[[str], object] = print) -> list[float]:  # fmt: skip
    """The losses of the steps, in bits a byte."""
    torch.manual_seed(0)
    text = torch.tensor(list(data), device=device)
    model = Model(attend).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        begins = torch.randint(len(text) - LENGTH, (BATCH,)).tolist()
        rows = torch.stack([text[i : i + LENGTH + 1] for i in begins])
        scores = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / 0.6931471805599453)
        if step % 20 == 0 or step == steps - 1:
            report(f"step {step:4}: {losses[-1]:.2f} bits a byte")
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("text", nargs="?", type=pathlib.Path, default=here / "README.md")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--torch", action="store_true", help="torch's own attention instead")
    given = parser.parse_args()
    try:
        text = given.text.read_bytes()
    except OSError as why:
        parser.error(f"cannot read {given.text}: {why.strerror}")
    if len(text) <= LENGTH:
        parser.error(f"{given.text} has {len(text)} bytes, wanted more than {LENGTH}")
    train(text, given.steps, given.device, theirs if given.torch else ours)


if __name__ == "__main__":
    main()
