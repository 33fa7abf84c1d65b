# SPDX-License-Identifier: Apache-2.0
"""The options of the commands that train a byte model."""
from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

COUNTS = "steps", "rows", "tokens", "layers", "held_out"


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--steps", type=int, default=400, help="steps of training")
    option("--rows", type=int, default=4, help="windows of a step")
    option("--tokens", type=int, default=256, help="bytes of a window")
    option("--layers", type=int, default=4, help="of width 256")
    option("--rate", type=float, default=2e-3, help="learning rate, at its highest")
    option("--seed", type=int, default=0, help="of weights and windows; the first, where several")
    option("--held-out", type=int, default=64, help="windows of held-out text that are judged")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--force", action="store_true", help="writes over a table that is there")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None,
          counts: Sequence[str]) -> argparse.Namespace:
    """counts: options of the command's own that are 1 or more."""
    args = parser.parse_args(argv)
    for name in (*COUNTS, *counts):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}, wanted 1 or more")
    for name in ("seed", "threads"):
        if getattr(args, name) < 0:
            parser.error(f"--{name} is {getattr(args, name)}, wanted 0 or more")
    if not args.rate > 0:
        parser.error(f"--rate is {args.rate:g}, wanted more than 0")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args
