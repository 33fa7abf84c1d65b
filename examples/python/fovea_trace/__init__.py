# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a text a language model looks back at: see README.md."""
import smollm  # noqa: F401  finds the binding in a checkout
