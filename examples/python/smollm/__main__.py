# SPDX-License-Identifier: Apache-2.0
from smollm.generate import main

main()
