# SPDX-License-Identifier: Apache-2.0
from fovea_trace.command import main

main()
