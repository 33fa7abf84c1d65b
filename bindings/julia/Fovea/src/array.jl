# SPDX-License-Identifier: Apache-2.0
# Memory that a context owns.

"""
    DeviceArray{T}(ctx, dims...)
    DeviceArray(ctx, array)

Memory of a context's device: uninitialised, or the copy of an array.  `Array(x)` copies it back,
`copyto!` goes both ways; both are done when they return.  Used with its own context only.
"""
mutable struct DeviceArray{T,N}
    ctx::Context
    data::Ptr{Cvoid}
    dims::NTuple{N,Int}
    function DeviceArray{T,N}(ctx::Context, dims::NTuple{N,Int}) where {T,N}
        isbitstype(T) || invalid("DeviceArray: elements of type ", T)
        free_unused(ctx)
        out = Ref{Ptr{Cvoid}}(C_NULL)
        check(fovea_alloc(handle(ctx), FOVEA_MEMORY_DEVICE, prod(dims) * sizeof(T), out))
        lock(ctx.lock)
        ctx.live += 1
        unlock(ctx.lock)
        finalizer(release, new{T,N}(ctx, out[], dims))
    end
end

DeviceArray{T}(ctx::Context, dims::Integer...) where {T} =
    DeviceArray{T,length(dims)}(ctx, map(Int, dims))
DeviceArray(ctx::Context, from::AbstractArray{T,N}) where {T,N} =
    copyto!(DeviceArray{T,N}(ctx, size(from)), from)

# A finalizer may run between any two lines of a task that uses the context, so it only notes the
# memory; the next allocation frees it.  It must not wait for a lock: it comes again instead.
function release(x::DeviceArray)
    ctx = x.ctx
    trylock(ctx.lock) || return (finalizer(release, x); nothing)
    push!(ctx.unused, x.data)
    ctx.live -= 1
    last = ctx.closed && ctx.live == 0
    unlock(ctx.lock)
    last && ctx.handle != C_NULL && destroy(ctx)
    nothing
end

function free_unused(ctx::Context)
    lock(ctx.lock)
    unused, ctx.unused = ctx.unused, Ptr{Cvoid}[]
    unlock(ctx.lock)
    foreach(data -> check(fovea_free(handle(ctx), data)), unused)
end

Base.size(x::DeviceArray) = x.dims
Base.size(x::DeviceArray{T,N}, i::Integer) where {T,N} = i <= N ? x.dims[i] : 1
Base.ndims(::DeviceArray{T,N}) where {T,N} = N
Base.eltype(::DeviceArray{T}) where {T} = T
Base.eltype(::Type{<:DeviceArray{T}}) where {T} = T
Base.length(x::DeviceArray) = prod(x.dims)
Base.strides(x::DeviceArray) = Base.size_to_strides(1, x.dims...)
Base.similar(x::DeviceArray, ::Type{T}, dims::NTuple{N,Int}) where {T,N} =
    DeviceArray{T,N}(x.ctx, dims)
Base.show(io::IO, x::DeviceArray{T}) where {T} =
    print(io, join(x.dims, "x"), " DeviceArray{", T, "}")

function Base.copyto!(to::DeviceArray{T}, from::Array{T}) where {T}
    length(to) == length(from) || invalid("copyto!: ", length(from), " elements into ", length(to))
    GC.@preserve to from move(to.ctx, to.data, pointer(from), sizeof(from))
    to
end
Base.copyto!(to::DeviceArray{T}, from::AbstractArray) where {T} =
    copyto!(to, convert(Array{T}, from))

function Base.copyto!(to::Array{T}, from::DeviceArray{T}) where {T}
    length(to) == length(from) || invalid("copyto!: ", length(from), " elements into ", length(to))
    GC.@preserve to from move(from.ctx, pointer(to), from.data, sizeof(to))
    to
end
Base.Array(x::DeviceArray{T,N}) where {T,N} = copyto!(Array{T,N}(undef, x.dims), x)

function move(ctx, to, from, bytes)
    bytes == 0 && return
    check(fovea_copy(handle(ctx), to, from, bytes))
    synchronize(ctx)
end
