# SPDX-License-Identifier: Apache-2.0
"""Sparse attention methods beside dense attention on long text: see README.md."""
import smollm  # noqa: F401  finds the binding in a checkout
