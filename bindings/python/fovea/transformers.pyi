# SPDX-License-Identifier: Apache-2.0
NAME: str

def register(name: str = ...) -> None: ...
