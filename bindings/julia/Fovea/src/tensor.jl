# SPDX-License-Identifier: Apache-2.0
# Arrays as the library's tensors, and what the generated operations are made of.

"The library's number of an element type, -1 for none; add a method for a type of your own."
dtype(::Type{Float32}) = FOVEA_F32
dtype(::Type{Float16}) = FOVEA_F16
dtype(::Type{BFloat16}) = FOVEA_BF16
dtype(::Type{E4M3}) = FOVEA_E4M3
dtype(::Type{E5M2}) = FOVEA_E5M2
dtype(::Type{Int8}) = FOVEA_I8
dtype(::Type{Int32}) = FOVEA_I32
dtype(::Type{Int64}) = FOVEA_I64
dtype(::Type{UInt8}) = FOVEA_U8
dtype(::Type) = Int32(-1)

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

# What an argument must be before anything else is asked of it.  Of a foreign type only a try tells.
isarray(x::AbstractArray) = true
isarray(x) = applicable(strides, x) && applicable(ndims, x)
addressed(x::Union{Array,DeviceArray,Shaped}) = true
addressed(x) = try host_memory(x); strides(x); true catch; false end

function checked(op, field, x)
    isarray(x) || refused(op, field, x)
    dtype(eltype(x)) >= 0 || unknown(op, field, eltype(x))
    addressed(x) || invalid(op, ": ", field, " is of type ", typeof(x),
        ", whose elements have no address: copy it, as with collect(", field, ")")
    x
end
@noinline refused(op, field, x) = invalid(op, ": ", field, " is ",
    x === nothing ? "nothing" : "of type $(typeof(x))", ", wanted an array")
@noinline unknown(op, field, T) = invalid(op, ": ", field, " is an array of ", T,
    ", an element type that the library does not have", T === Bool ? ": only masks are arrays of Bool" :
    T <: Integer ? ": convert it, as with Int32.($field)" :
    T <: Real ? ": convert it, as with Float32.($field)" : "")

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
function workspace(ctx::Context, op, arguments...; keywords...)
    bytes = op isa Function ? op(Query(ctx), arguments...; keywords...) : nothing
    bytes isa Integer ||
        invalid("workspace: op is ", op isa Function ? op : "of type $(typeof(op))",
            ", wanted an operation, such as attention_forward")
    bytes
end
workspace(arguments...; keywords...) = misused("workspace", "ctx, op, arguments...", arguments)

const Target = Union{Context,Query}

"Where a call has other arguments than `wanted`: what is wrong with them."
@noinline function misused(op, wanted, arguments)
    call = "$op($wanted)"
    first_is = isempty(arguments) ? "missing" : "of type $(typeof(arguments[1]))"
    isempty(arguments) || !(arguments[1] isa Target) ?
        invalid(op, ": ctx is ", first_is, ", wanted a Context: ", call, " with ctx = Context(:host)") :
        invalid(op, ": got ", length(arguments), " arguments, wanted ", call)
end

"The tensor of an array: sizes and strides in reverse, fastest last."
tensor(target, op, field, ::Nothing) = NONE
function tensor(target, op, field, x)
    n = ndims(checked(op, field, x))
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
An array with strides of 0 where it repeats, over the memory of another.  Mutable as Shaped is.
"""
mutable struct Spread{T,N,A}
    parent::A
    dims::NTuple{N,Int}
    steps::NTuple{N,Int}
end
Spread(parent, dims::NTuple{N,Int}, steps::NTuple{N,Int}) where {N} =
    Spread{eltype(parent),N,typeof(parent)}(parent, dims, steps)
Base.ndims(::Spread{T,N}) where {T,N} = N
Base.eltype(::Spread{T}) where {T} = T
Base.size(x::Spread) = x.dims
Base.length(x::Spread) = prod(x.dims)
Base.strides(x::Spread) = x.steps
address(ctx, op, field, x::Spread) = address(ctx, op, field, x.parent)

"Whether every stride is 0 over more than one element: the library takes that for strides forgotten."
repeats(x) = length(x) > 1 && all(iszero, strides(x))
repeats(::Union{Array,DeviceArray,Shaped}) = false

"An input in memory of its own where it repeats one element."
whole(target, op, field, ::Nothing) = nothing
function whole(target, op, field, x)
    checked(op, field, x)
    x isa AbstractArray && repeats(x) ? settled(target, x) : x
end
"An input that a call cannot do without."
needed(target, op, field, x) = whole(target, op, field, checked(op, field, x))
settled(::Context, x) = copyto!(similar(x, eltype(x), size(x)), x)
settled(::Query, x) = Shaped(eltype(x), size(x))

"The key columns that a row can be asked about (`keys` of core.h)."
key_columns(k, page_table, key_start, key_max) =
    (page_table !== nothing || key_start !== nothing) && key_max > 0 ? Int(key_max) :
    size(k, 3) * (page_table === nothing ? 1 : size(page_table, 1))
key_columns(k, ::Nothing, ::Nothing, key_max) = size(k, 3)

"The key blocks that a row block can be asked about."
key_blocks(k, ::Nothing, block_keys) = cld(size(k, 3), block_keys > 0 ? block_keys : 64)
key_blocks(k, page_table, block_keys) = size(page_table, 1)

# As Julia broadcasts: dimensions that are missing at the end, and extents of 1.
fits(x, dims) = ndims(x) <= length(dims) && all(i -> size(x)[i] in (1, dims[i]), 1:ndims(x))

function over(x, dims)
    steps = strides(x)
    Spread(x, dims, ntuple(i -> i <= ndims(x) && size(x)[i] > 1 ? Int(steps[i]) : 0, length(dims)))
end

# One element for all has strides of 0 only, so a row of it stands along the first extent above 1.
row_axis(dims) = findfirst(n -> n > 1, dims)
in_a_row(row, dims) = Spread(row, dims, ntuple(i -> Int(i == row_axis(dims)), length(dims)))

repeated(::Query, x, n) = Shaped(eltype(x), (n,))
function repeated(ctx::Context, x, n)
    row = similar(x, eltype(x), (n,))
    length(x) == 1 ? row .= reshape(x, 1) : fill!(row, first(x))
end
repeated(ctx::Context, x::DeviceArray, n) = DeviceArray(ctx, fill(first(Array(x)), n))

"An input broadcast to `dims`.  One of as many dimensions that does not fit is the library's to refuse."
spread(target, op, field, ::Nothing, dims) = nothing
function spread(target, op, field, x, dims)
    isarray(x) && eltype(x) === Bool && invalid(op, ": ", field, " is an array of Bool: give it as mask")
    checked(op, field, x)
    if !fits(x, dims)
        ndims(x) == length(dims) && return x
        invalid(op, ": ", field, " has size ", size(x), ", wanted ", dims, " or one that broadcasts to it")
    end
    size(x) == dims && !repeats(x) && return x
    y = over(x, dims)
    repeats(y) ? in_a_row(repeated(target, x, dims[row_axis(dims)]), dims) : y
end

"A row that receives what an output of one element is the sum of."
mutable struct Summed{T,N,A,B}
    row::Spread{T,N,A}
    to::B
end
Base.ndims(x::Summed) = ndims(x.row)
Base.eltype(x::Summed) = eltype(x.row)
Base.size(x::Summed) = size(x.row)
Base.length(x::Summed) = length(x.row)
Base.strides(x::Summed) = strides(x.row)
addressed(x::Union{Spread,Summed}) = true # their parents were asked
address(ctx, op, field, x::Summed) = address(ctx, op, field, x.row)

"An output that broadcasts to `dims`: it receives sums over the dimensions where it has one element."
summed(target, op, field, ::Nothing, dims) = nothing
function summed(target, op, field, x, dims)
    checked(op, field, x)
    (size(x) == dims || !fits(x, dims)) && return x # the library refuses what does not fit
    length(x) == 1 && prod(dims) > 1 || return over(x, dims)
    Summed(in_a_row(row_like(target, x, dims[row_axis(dims)]), dims), x)
end
row_like(::Context, x, n) = similar(x, eltype(x), (n,))
row_like(::Query, x, n) = Shaped(eltype(x), (n,))

"Writes the sum of a row, once the call is done."
total(target, x) = nothing
function total(ctx::Context, x::Summed)
    synchronize(ctx)
    copyto!(x.to, fill(eltype(x)(sum(Float64, Array(x.row.parent))), size(x.to)))
    nothing
end

"A mask as bits: a Bool array that broadcasts to (keys, dims...), or bits that are packed already."
bits(target, op, field, ::Nothing, dims) = nothing
function bits(target, op, field, x, dims)
    isarray(x) || refused(op, field, x)
    T, keys, rest = eltype(x), dims[1], Base.tail(dims)
    width = cld(keys, 8)
    if T === Bool
        ndims(x) >= 1 && fits(x, dims) || invalid(op, ": ", field, " has size ", size(x),
            ", wanted ", dims, " or one that broadcasts to it")
        tail = ntuple(i -> size(x, i + 1), max(ndims(x) - 1, 0))
        bytes = packed(target, x, keys, (width, tail...))
        return spread(target, op, field, bytes, (width, rest...))
    end
    T === UInt8 || invalid(op, ": ", field, " is an array of ", T, ", wanted Bool of size ", dims,
        " or one that broadcasts to it, or the bits packed as UInt8")
    checked(op, field, x)
    ndims(x) >= 1 && size(x, 1) == width && fits(x, (width, rest...)) || invalid(op, ": ", field,
        " has size ", size(x), ", wanted ", (width, rest...), ", a bit for each of ", keys,
        ": give a Bool array of size ", dims, " or one that broadcasts to it")
    spread(target, op, field, x, (width, rest...))
end

packed(::Query, x, keys, dims) = Shaped(UInt8, dims)
packed(ctx::Context, x::DeviceArray, keys, dims) =
    DeviceArray(ctx, packed(ctx, Array(x), keys, dims))
function packed(::Context, x, keys, dims)
    bytes = fill!(similar(x, UInt8, dims), 0x00)
    all_of(y, first) = view(y, first, ntuple(i -> :, ndims(y) - 1)...)
    for bit in 0:min(7, keys - 1)
        columns = 1+bit:8:keys
        to = all_of(bytes, 1:length(columns))
        to .|= (size(x, 1) == keys ? all_of(x, columns) : x) .* (0x01 << bit)
    end
    bytes
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
    status = run(handle(ctx), params)
    status == FOVEA_OK || fail(status, params[]) # as a value: the Ref stays on the stack
    nothing
end
function launch(target::Query, run, query, params)
    bytes = Ref{Csize_t}(0)
    status = query(handle(target.ctx), params, bytes)
    status == FOVEA_OK || fail(status, params[])
    Int(bytes[])
end

"What a call returns: the workspace asked for, one output, or more by name."
results(bytes, outputs::NamedTuple) = bytes
results(::Nothing, outputs::NamedTuple{names,<:Tuple{Any}}) where {names} = outputs[1]
results(::Nothing, outputs::NamedTuple) = outputs
results(::Nothing, ::NamedTuple{(),Tuple{}}) = nothing

named(::Val{name}, ::Nothing) where {name} = NamedTuple()
named(::Val{name}, x) where {name} = NamedTuple{(name,)}((x,))
