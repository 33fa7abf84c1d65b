# SPDX-License-Identifier: Apache-2.0
# Arrays as the library's tensors, and what the generated operations are made of.

"The library's number of an element type; add a method for a type of your own."
dtype(::Type{Float32}) = FOVEA_F32
dtype(::Type{Float16}) = FOVEA_F16
dtype(::Type{BFloat16}) = FOVEA_BF16
dtype(::Type{E4M3}) = FOVEA_E4M3
dtype(::Type{E5M2}) = FOVEA_E5M2
dtype(::Type{Int8}) = FOVEA_I8
dtype(::Type{Int32}) = FOVEA_I32
dtype(::Type{Int64}) = FOVEA_I64
dtype(::Type{UInt8}) = FOVEA_U8
dtype(::Type{T}) where {T} = invalid("the library has no elements of type ", T)

"Where an array's memory begins.  Any 64-bit pointer type will do: CUDA.jl's CuPtr is one."
device_pointer(x) = reinterpret(Ptr{Cvoid}, pointer(x))
device_pointer(x::DeviceArray) = x.data

"Whether an array is host memory.  Pinned memory that the device reads may say `false`."
host_memory(x) = pointer(x) isa Ptr
host_memory(x::DeviceArray) = ishost(x.ctx)

"""
An output whose memory nobody needs: its shape is all that `workspace` asks for.  Mutable, because
GC.@preserve of a union of immutables trips an assertion of Julia 1.5's code generator.
"""
mutable struct Shaped{T,N}
    dims::NTuple{N,Int}
end
Shaped(::Type{T}, dims::NTuple{N,Int}) where {T,N} = Shaped{T,N}(dims)
Base.ndims(::Shaped{T,N}) where {T,N} = N
Base.eltype(::Shaped{T}) where {T} = T
Base.size(x::Shaped) = x.dims
Base.length(x::Shaped) = prod(x.dims)
Base.strides(x::Shaped) = Base.size_to_strides(1, x.dims...)

const NOWHERE = Ptr{Cvoid}(256) # aligned for every dtype; NULL would say "not given"
const NONE = Tensor(C_NULL, 0, 0, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0))

# Query stands in for a context where only the workspace is asked for.
struct Query
    ctx::Context
end
context(ctx::Context) = ctx
context(query::Query) = query.ctx

"""
    workspace(ctx, op, arguments...; keywords...)

The bytes of workspace that the same call of `op` would use, or its error: nothing is computed.
"""
workspace(ctx::Context, op, arguments...; keywords...) = op(Query(ctx), arguments...; keywords...)

"The tensor of an array: sizes and strides in reverse, fastest last."
tensor(target, op, field, ::Nothing) = NONE
function tensor(target, op, field, x)
    n = ndims(x)
    n <= FOVEA_MAX_DIMS ||
        invalid(op, ": ", field, " has ", n, " dimensions, at most ", FOVEA_MAX_DIMS)
    data, dims, steps = address(context(target), op, field, x), size(x), strides(x)
    reversed(values) = ntuple(i -> i <= n ? Int64(values[n+1-i]) : Int64(0), Val(FOVEA_MAX_DIMS))
    Tensor(data, dtype(eltype(x)), n, reversed(dims), reversed(steps))
end

# Fake memory of its own for every object, aligned for every dtype.
address(ctx, op, field, x::Shaped) = Ptr{Cvoid}(256 * UInt(pointer_from_objref(x)))
function address(ctx, op, field, x)
    x isa DeviceArray && x.ctx !== ctx && invalid(op, ": ", field, " belongs to another context")
    host_memory(x) == ishost(ctx) || invalid(op, ": ", field, ishost(ctx) ?
        " is device memory, the context computes on the host" :
        " is host memory, the context computes on a device: make it a DeviceArray or a CuArray")
    length(x) == 0 ? NOWHERE : device_pointer(x)
end

"""
An extent of an output: of the first array that has it.  Each source is the array, the number of
its dimension counted from the fastest, and what to add.
"""
extent(op, field, name) =
    invalid(op, ": give the array ", field, ": its extent ", name, " follows from nothing given")
extent(op, field, name, source, more...) =
    source[1] === nothing ? extent(op, field, name, more...) :
    size(source[1], source[2]) + source[3]

first_given() = nothing
first_given(x, more...) = x === nothing ? first_given(more...) : x

"An output argument as an array or nothing; `dims` is called only where one is to be made."
output(target, given, like, type, dims) = given
output(target, ::Nothing, like, type, dims) = nothing
output(::Context, wanted::Bool, like, ::Type{T}, dims) where {T} =
    wanted ? similar(like, T, dims()) : nothing
output(::Query, wanted::Bool, like, ::Type{T}, dims) where {T} =
    wanted ? Shaped(T, dims()) : nothing

"Runs a call, or asks for its workspace."
function launch(ctx::Context, run, query, params)
    check(run(handle(ctx), params))
    nothing
end
function launch(target::Query, run, query, params)
    bytes = Ref{Csize_t}(0)
    check(query(handle(target.ctx), params, bytes))
    Int(bytes[])
end

"What a call returns: the workspace asked for, one output, or more by name."
results(bytes, outputs::NamedTuple) = bytes
results(::Nothing, outputs::NamedTuple{names,<:Tuple{Any}}) where {names} = outputs[1]
results(::Nothing, outputs::NamedTuple) = outputs
results(::Nothing, ::NamedTuple{(),Tuple{}}) = nothing

named(::Val{name}, ::Nothing) where {name} = NamedTuple()
named(::Val{name}, x) where {name} = NamedTuple{(name,)}((x,))
