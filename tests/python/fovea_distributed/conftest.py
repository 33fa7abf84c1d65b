# SPDX-License-Identifier: Apache-2.0
"""Tests of fovea.distributed, on gloo: processes that live as long as the session take functions.

Without torch they are skipped; FOVEA_REQUIRE_ALL makes that a failure."""

import importlib.util
import os

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
    if os.environ.get("FOVEA_REQUIRE_ALL"):
        raise pytest.UsageError("FOVEA_REQUIRE_ALL is set and there is no torch: tools/setup test")
else:
    import torch
    from ranks import CUDA, Ranks

    @pytest.fixture(scope="session")
    def ranks():
        with Ranks(min(4, torch.cuda.device_count()) if CUDA else 4) as made:
            yield made
