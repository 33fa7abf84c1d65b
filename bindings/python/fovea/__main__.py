# SPDX-License-Identifier: Apache-2.0
"""python -m fovea: the report of fovea.collect_env().  python -m fovea recipes: the methods by name."""

import os
import sys

from . import collect_env, recipes


def main() -> None:
    words = sys.argv[1:]
    if words not in ([], ["recipes"]):
        sys.exit(f"usage: {os.path.basename(sys.argv[0])} [recipes]")
    try:
        print("\n\n".join(map(str, recipes())) if words else collect_env(), flush=True)
    except BrokenPipeError:  # the reader has seen enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
