# SPDX-License-Identifier: Apache-2.0
"""What the examples that train a model share: see README.md of linear and of compact."""
import smollm  # noqa: F401  finds the binding in a checkout
