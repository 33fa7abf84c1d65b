# SPDX-License-Identifier: Apache-2.0
"""python -m fovea prints what an issue should tell of the machine."""

from . import collect_env

print(collect_env())
