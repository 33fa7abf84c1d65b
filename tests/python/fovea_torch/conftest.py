# SPDX-License-Identifier: Apache-2.0
"""Tests of fovea.torch.  The folder is not called torch: on sys.path that would be a package.

Without torch they are skipped; FOVEA_REQUIRE_ALL makes that a failure."""

import importlib.util
import os

import pytest

MISSING = importlib.util.find_spec("torch") is None
if MISSING:
    collect_ignore_glob = ["test_*.py"]
    if os.environ.get("FOVEA_REQUIRE_ALL"):
        raise pytest.UsageError("FOVEA_REQUIRE_ALL is set and there is no torch: tools/setup test")
else:
    import fovea
    import torch

    CUDA = torch.cuda.is_available() and fovea.device_count("cuda") > 0

    @pytest.fixture(params=["cpu", "cuda"])
    def device(request):
        if request.param == "cuda" and not CUDA:
            pytest.skip("needs a CUDA device")
        torch.manual_seed(0)
        return request.param
