# SPDX-License-Identifier: Apache-2.0
"""
Efficient attention on the CPU and on NVIDIA GPUs, behind one stable C library.

    using Fovea
    ctx = Context(:host)
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

**GPU**: `Context(:cuda)`.  Arrays of CUDA.jl pass by pointer (hand over its stream with
`set_stream!`, so that both libraries work in one order); [`DeviceArray`](@ref) needs no other
package.  Array types with a pointer of another kind add methods to `device_pointer`, `host_memory`.
"""
module Fovea

export Context, DeviceArray, BFloat16, E4M3, E5M2
export set_threads!, set_stream!, set_workspace!, synchronize, wait_for!
export device_count, last_kernel, property, workspace

include("floats.jl")
include("abi.jl")

# ---- errors: one type a status, the sentence in `text`

abstract type FoveaError <: Exception end
for (name, words) in (:InvalidArgument => "no fovea could run this: the call is wrong",
                      :Unsupported => "a valid call that this build or device has no kernel for",
                      :OutOfMemory => "the workspace or a buffer could not be had",
                      :DeviceError => "the device failed: close the context",
                      :InternalError => "a bug in fovea")
    @eval begin
        $("`Fovea.$name`: $words.")
        struct $name <: FoveaError
            text::String
        end
    end
end
Base.showerror(io::IO, e::FoveaError) = print(io, nameof(typeof(e)), ": ", e.text)

@noinline function fail(status)
    text = unsafe_string(fovea_last_error())
    status == FOVEA_INVALID_ARGUMENT && throw(InvalidArgument(text))
    status == FOVEA_UNSUPPORTED && throw(Unsupported(text))
    status == FOVEA_OUT_OF_MEMORY && throw(OutOfMemory(text))
    status == FOVEA_DEVICE_ERROR && throw(DeviceError(text))
    throw(InternalError(text))
end
check(status) = status == FOVEA_OK ? nothing : fail(status)
@noinline invalid(text...) = throw(InvalidArgument(string(text...)))

# ---- the library: $FOVEA_LIBRARY, lib/ of the source tree, or as the system finds it

using Libdl
const library = Ref{Ptr{Cvoid}}(C_NULL)

function open_library()
    given = get(ENV, "FOVEA_LIBRARY", "")
    tree = normpath(joinpath(@__DIR__, "..", "..", "..", "..", "lib", "libfovea.so"))
    path = !isempty(given) ? given : isfile(tree) ? tree : "libfovea.so.$(FOVEA_VERSION_MAJOR)"
    handle = Libdl.dlopen(path; throw_error=false)
    handle === nothing && error("cannot open $path: set FOVEA_LIBRARY to the path of libfovea.so")
    version = ccall(Libdl.dlsym(handle, :fovea_version), Int32, ())
    epoch(v) = v < 10000 ? v ÷ 100 : v ÷ 10000 * 100 # before 1.0 a minor version may break the ABI
    epoch(version) == epoch(FOVEA_VERSION) ||
        error("$path is version $version, this package is for $FOVEA_VERSION")
    library[] = handle
end

"The address of a function, looked up once: pointers do not survive precompilation."
@inline symbol(slot, name) = slot[] == C_NULL ? resolve(slot, name) : slot[]
@noinline function resolve(slot, name)
    library[] == C_NULL && open_library()
    slot[] = Libdl.dlsym(library[], name)
end

"The library's version, `major * 10000 + minor * 100 + patch`."
version() = fovea_version()

"A fact of the library's build, `Fovea.build(:operations)`; \"\" for an unknown key."
function build(key)
    text = fovea_build_get(enumerated(BUILD, key))
    text == C_NULL ? "" : unsafe_string(text)
end

"How many devices `:host` or `:cuda` has here; 0 is not an error."
function device_count(backend)
    count = Ref{Int32}(0)
    check(fovea_device_count(enumerated(BACKEND, backend), count))
    Int(count[])
end

@inline enumerated(names, x::Integer) = Int32(x)
function enumerated(names, x::Symbol)
    haskey(names, x) || invalid("unknown name :", x, ", wanted one of ", join(keys(names), " "))
    names[x]
end

# ---- context

"""
    Context(:host)
    Context(:cuda, device=0)

One device, one stream, one workspace.  One task at a time uses it; contexts are independent.
Freed by `close` or the garbage collector.
"""
mutable struct Context
    handle::Ptr{Cvoid}
    backend::Int32
    live::Int                   # arrays whose memory is not freed yet
    closed::Bool
    unused::Vector{Ptr{Cvoid}}  # memory of collected arrays, freed by the next allocation
    lock::Base.Threads.SpinLock
    function Context(backend=:host, device::Integer=0)
        number, out = enumerated(BACKEND, backend), Ref{Ptr{Cvoid}}(C_NULL)
        check(fovea_context_create(number, Int32(device), out))
        finalizer(close, new(out[], number, 0, false, Ptr{Cvoid}[], Base.Threads.SpinLock()))
    end
end

ishost(ctx::Context) = ctx.backend == FOVEA_HOST
Base.show(io::IO, ctx::Context) = print(io, "Fovea.Context(", ishost(ctx) ? ":host)" : ":cuda)")

function Base.close(ctx::Context)
    ctx.closed = true
    ctx.live == 0 && ctx.handle != C_NULL && destroy(ctx)
    nothing
end

function destroy(ctx::Context)
    foreach(data -> fovea_free(ctx.handle, data), ctx.unused)
    fovea_context_destroy(ctx.handle)
    ctx.handle = C_NULL
end

handle(ctx::Context) = ctx.closed ? invalid("the context is closed") : ctx.handle

"Threads a host operation may use; 0: all."
function set_threads!(ctx::Context, threads)
    check(fovea_context_set_threads(handle(ctx), Int32(threads)))
    ctx
end

"Borrow a stream (a `cudaStream_t` as a `Ptr`); `C_NULL`: the context's own again."
function set_stream!(ctx::Context, stream)
    check(fovea_context_set_stream(handle(ctx), reinterpret(Ptr{Cvoid}, stream)))
    ctx
end

"A fixed workspace, an array that the caller keeps alive; `nothing`: the context's own again."
function set_workspace!(ctx::Context, x)
    data, bytes = x === nothing ? (C_NULL, 0) : (device_pointer(x), length(x) * sizeof(eltype(x)))
    check(fovea_context_set_workspace(handle(ctx), data, bytes))
    ctx
end

"Waits until all work is done; faults of earlier operations surface here."
function synchronize(ctx::Context)
    check(fovea_context_synchronize(handle(ctx)))
    ctx
end

"Later work of `ctx` waits for what `other` has enqueued so far."
function wait_for!(ctx::Context, other::Context)
    check(fovea_context_wait(handle(ctx), handle(other)))
    ctx
end

"The kernel that the last operation ran; \"\" before any."
last_kernel(ctx::Context) = unsafe_string(fovea_context_last_kernel(handle(ctx)))

"One number of the context or its device, `property(ctx, :free_bytes)`."
function property(ctx::Context, key)
    value = Ref{Int64}(0)
    check(fovea_context_get(handle(ctx), enumerated(PROPERTY, key), value))
    value[]
end

include("array.jl")
include("tensor.jl")
include("ops.jl")

end
