# SPDX-License-Identifier: Apache-2.0
"""
Efficient attention on the CPU and on NVIDIA GPUs, behind one stable C library.

    using Fovea
    ctx = Context(:host)                   # or Context(:cuda, 0)
    q = randn(Float32, 64, 8, 100, 1)      # (d, h, s, b)
    k = randn(Float32, 64, 2, 120, 1)      # (d, g, t, b)
    v = randn(Float32, 64, 2, 120, 1)      # (e, g, t, b)
    o = attention_forward(ctx, q, k, v; causal=true)
    o, lse = attention_forward(ctx, q, k, v; causal=true, lse=true)

**Dimensions are reversed.**  The library's documentation writes shapes row-major, slowest first:
q is (b, s, h, d).  Julia is column-major, fastest first, so the same memory is an array of size
(d, h, s, b).  Nothing is copied: `size` and `strides` are handed over in reverse.  A `view` or a
`PermutedDimsArray` passes its strides as they are, so any layout works.  An index inside an array
(`query_start`, `page_table`) counts from 0, as the library does.

**Masks** are arrays of `Bool` (a `BitArray` too) of size (keys, s, h, b), or one that broadcasts to
it, such as (keys, s); packed bits are `UInt8`, the first key in bit 0.  A `bias` broadcasts too,
and `dbias` comes in its size.

**Outputs** are keyword arguments: `true` allocates, an array is written, `false` (or `nothing`) is
not computed.  One output is returned as it is, more as a `NamedTuple`.

**Errors** are `Fovea.InvalidArgument`, `Unsupported`, `OutOfMemory`, `DeviceError`, `InternalError` and
`LibraryError`, all `Fovea.FoveaError`.  `text` is the sentence, with Julia's dimension beside the C one:
`k.shape[2] (g) is 3, wanted a divisor of q's 4 heads: (b, s, h, d), not SDPA's order (Julia: size(k, 2), (d, h, s, b))`.

**GPU**: `Context(:cuda)`.  Arrays of CUDA.jl pass by pointer (hand over its stream with
`set_stream!`, so that both libraries work in one order); [`DeviceArray`](@ref) needs no other
package.  Array types with a pointer of another kind add methods to `device_pointer`, `host_memory`.
"""
module Fovea

export Context, DeviceArray, BFloat16, E4M3, E5M2
export set_threads!, set_stream!, set_workspace!, synchronize, wait_for!
export device_count, last_kernel, last_plan, last_reasons, property, workspace, recipe, recipes

include("floats.jl")
include("abi.jl")
include("errors.jl")
include("library.jl")
include("context.jl")
include("array.jl")
include("tensor.jl")
include("ops.jl")
include("recipe.jl")

end
