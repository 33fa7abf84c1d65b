# SPDX-License-Identifier: Apache-2.0
# A context: one device, one stream, one workspace.

"""
    Context(:host)
    Context(:cuda)
    Context(:cuda, 1)
    Context(f, :host)

One device, one stream, one workspace.  The second argument is the number of the device, from 0.
One task at a time uses a context; contexts are independent.  `close(ctx)` frees it, and so does the
garbage collector.  The form with a function closes the context when the function returns:

    o = Context(:host) do ctx
        attention_forward(ctx, q, k, v)
    end
"""
mutable struct Context
    handle::Ptr{Cvoid}
    backend::Int32
    live::Int                   # arrays whose memory is not freed yet
    closed::Bool
    unused::Vector{Ptr{Cvoid}}  # memory of collected arrays, freed by the next allocation
    lock::Base.Threads.SpinLock
    function Context(backend=:host, device=0)
        kind, out = backend_number("Context", backend), Ref{Ptr{Cvoid}}(C_NULL)
        check(fovea_context_create(kind, number(Int32, "Context: device", device), out))
        finalizer(close, new(out[], kind, 0, false, Ptr{Cvoid}[], Base.Threads.SpinLock()))
    end
end

function Context(f::Function, backend=:host, device=0)
    ctx = Context(backend, device)
    try
        f(ctx)
    finally
        close(ctx)
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

handle(ctx::Context) =
    ctx.closed ? invalid("ctx is closed, wanted an open one: make another Context") : ctx.handle

"Threads a host operation may use; 0: all."
function set_threads!(ctx::Context, threads)
    check(fovea_context_set_threads(handle(ctx), number(Int32, "set_threads!: threads", threads)))
    ctx
end

"Borrow a stream (a `cudaStream_t` as a `Ptr`); `C_NULL`: the context's own again."
function set_stream!(ctx::Context, stream)
    stream isa Union{Ptr,Integer} ||
        invalid("set_stream!: stream is ", repr(stream), ", wanted a cudaStream_t as a Ptr, or C_NULL")
    check(fovea_context_set_stream(handle(ctx), Ptr{Cvoid}(stream)))
    ctx
end

"A fixed workspace, an array that the caller keeps alive; `nothing`: the context's own again."
function set_workspace!(ctx::Context, x)
    x === nothing || (isarray(x) && addressed(x)) ||
        invalid("set_workspace!: x is of type ", typeof(x), ", wanted an array in memory, or nothing")
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
function wait_for!(ctx::Context, other)
    other isa Context || invalid("wait_for!: other is of type ", typeof(other), ", wanted a Context")
    check(fovea_context_wait(handle(ctx), handle(other)))
    ctx
end

"The kernel that the last operation ran; \"\" before any."
last_kernel(ctx::Context) = unsafe_string(fovea_context_last_kernel(handle(ctx)))

"The kernel that the last operation or [`workspace`](@ref) chose; \"\" before any."
last_plan(ctx::Context) = unsafe_string(fovea_context_last_plan(handle(ctx)))

"""
Why no better kernel serves the call of [`last_plan`](@ref), best first: "sm90: bias is given, wanted
none; sm80: ..."; "" where the best one serves.
"""
last_reasons(ctx::Context) = unsafe_string(fovea_context_last_reasons(handle(ctx)))

"One number of the context or its device, `property(ctx, :free_bytes)`."
function property(ctx::Context, key)
    value = Ref{Int64}(0)
    check(fovea_context_get(handle(ctx), enumerated(PROPERTY, "property: key", key), value))
    value[]
end
