# SPDX-License-Identifier: Apache-2.0
"""python -m fovea: the report of fovea.collect_env()."""

import os
import sys

from . import collect_env

try:
    print(collect_env(), flush=True)
except BrokenPipeError:  # the reader has seen enough: `| head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
