# SPDX-License-Identifier: Apache-2.0
from long_context.command import main

main()
