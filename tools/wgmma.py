#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the wgmma wrappers, which inline assembly cannot loop over: tools/wgmma.py FILE

Wgmma<Dtype, N>: 64 x N sums of a warpgroup, d[j][c] column 8 j + 2 (lane % 4) + c % 2.
  ss(d, a, b, accumulate)  both operands in shared memory, by descriptor
  rs(d, a, b, accumulate)  a in registers, as sums packed two by two
Transposed says that B is stored [k][column], TransposedA that A is stored [k][row].  8-bit operands
are [row][k] and [column][k] only, so e4m3 has no such choice; a step is 32 k, and a holds four codes
a word.  Sums of i8 are int32_t."""

import pathlib
import sys

TYPES = {"FOVEA_BF16": "bf16", "FOVEA_F16": "f16"}
WIDTHS = [64, 80, 96, 112, 128, 192, 256]
BYTE_TYPES = {"FOVEA_E4M3": "e4m3"}
INTEGER_TYPES = {"FOVEA_I8": "s8"}
BYTE_WIDTHS = [64, 128, 192, 256]

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Written by tools/wgmma.py.
template <int Dtype, int N>
struct Wgmma;
"""
MEMBER = """  template <{flags}>
  __device__ __forceinline__ static void {name}(float (&d)[{groups}][4], {arguments}, uint64_t b, int accumulate) {{
    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{flag}, 0; wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {{{sums}}}, {a}, %{b}, p, 1, 1, {transposes};}}"
                 : {outputs}
                 : {inputs}, "l"(b), "r"(accumulate), {flag_inputs});
  }}
"""
BYTE_MEMBER = """  __device__ __forceinline__ static void {name}(float (&d)[{groups}][4], {arguments}, uint64_t b, int accumulate) {{
    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{flag}, 0; wgmma.mma_async.sync.aligned.m64n{n}k32.f32.{type}.{type} {{{sums}}}, {a}, %{b}, p, 1, 1;}}"
                 : {outputs}
                 : {inputs}, "l"(b), "r"(accumulate));
  }}
"""
INTEGER_MEMBER = """  __device__ __forceinline__ static void {name}(int32_t (&d)[{groups}][4], {arguments}, uint64_t b, int accumulate) {{
    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{flag}, 0; wgmma.mma_async.sync.aligned.m64n{n}k32.s32.{type}.{type} {{{sums}}}, {a}, %{b}, p;}}"
                 : {outputs}
                 : {inputs}, "l"(b), "r"(accumulate));
  }}
"""


def member(name, n, kind, form=MEMBER):
    count = n // 2
    registers = name == "rs"
    operands = 4 if registers else 1
    b = count + operands
    return form.format(
        name=name,
        n=n,
        type=kind,
        groups=n // 8,
        arguments="const uint32_t (&a)[4]" if registers else "uint64_t a",
        flag=b + 1,
        sums=", ".join(f"%{i}" for i in range(count)),
        a="{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}",
        b=b,
        transposes=f"%{b + 2}" if registers else f"%{b + 2}, %{b + 3}",
        flags="int Transposed" if registers else "int Transposed, int TransposedA = 0",
        flag_inputs='"n"(Transposed)' if registers else '"n"(TransposedA), "n"(Transposed)',
        outputs=", ".join(f'"+{"r" if form is INTEGER_MEMBER else "f"}"(d[{i // 4}][{i % 4}])' for i in range(count)),
        inputs=", ".join(f'"r"(a[{i}])' for i in range(4)) if registers else '"l"(a)',
    )


def main():
    text = HEAD
    for dtype, kind in TYPES.items():
        for n in WIDTHS:
            text += f"template <>\nstruct Wgmma<{dtype}, {n}> {{\n"
            text += member("ss", n, kind) + member("rs", n, kind) + "};\n"
    for dtype, kind in BYTE_TYPES.items():
        for n in BYTE_WIDTHS:
            text += f"template <>\nstruct Wgmma<{dtype}, {n}> {{\n"
            text += member("ss", n, kind, BYTE_MEMBER) + member("rs", n, kind, BYTE_MEMBER) + "};\n"
    for dtype, kind in INTEGER_TYPES.items():
        for n in BYTE_WIDTHS:
            text += f"template <>\nstruct Wgmma<{dtype}, {n}> {{\n"
            text += member("ss", n, kind, INTEGER_MEMBER)
            text += member("rs", n, kind, INTEGER_MEMBER) + "};\n"
    target = pathlib.Path(sys.argv[1])
    if not target.exists() or target.read_text() != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main()
