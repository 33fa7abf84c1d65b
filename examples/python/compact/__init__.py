# SPDX-License-Identifier: Apache-2.0
"""Attention with a small cache, trained from scratch and made from a trained model: README.md."""
import smollm  # noqa: F401  finds the binding in a checkout
