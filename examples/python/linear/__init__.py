# SPDX-License-Identifier: Apache-2.0
"""Linear attention methods, trained from scratch: see README.md."""
import smollm  # noqa: F401  finds the binding in a checkout
