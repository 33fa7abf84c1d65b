# SPDX-License-Identifier: Apache-2.0
# Errors: one type a status, the library's sentence in `text`, and Julia's names beside it.

abstract type FoveaError <: Exception end
for (name, words) in (:InvalidArgument => "no fovea could run this: the call is wrong",
                      :Unsupported => "a valid call that this build or device has no kernel for",
                      :OutOfMemory => "the workspace or a buffer could not be had",
                      :DeviceError => "the device failed: close the context",
                      :InternalError => "a bug in fovea",
                      :LibraryError => "libfovea was not found, or is not for this package")
    @eval begin
        $("`Fovea.$name`: $words.")
        struct $name <: FoveaError
            text::String
        end
    end
end
Base.showerror(io::IO, e::FoveaError) = print(io, nameof(typeof(e)), ": ", e.text)

const PLACE = r"\b(\w+)\.(shape|stride)\[(\d)\]|\((\w[\w+]*(?:, \w[\w+]*)+)\)|\baxis (\d)"

"""
The sentence of the library, and in Julia's order what it counts from 0, slowest first: of a tensor
of rank 4 `k.shape[2]` is `size(k, 2)`, and (b, s, h, d) is (d, h, s, b).
"""
function in_julia(text, params)
    words, rank = String[], 0
    for m in eachmatch(PLACE, text)
        field, what, index, list, axis = m.captures
        if list !== nothing
            push!(words, string("(", join(reverse(split(list, ", ")), ", "), ")"))
        elseif axis !== nothing
            rank > 0 && push!(words, "dimension $(rank - parse(Int, axis))")
        else
            rank = rank_of(params, Symbol(field))
            rank > 0 && push!(words, "$(what == "shape" ? "size" : "stride")($field, $(rank - parse(Int, index)))")
        end
    end
    wanted = match(r"\.dtype is \w+, wanted (\w+)(?: as in \w+)?$", text)
    wanted === nothing || append!(words, ["elements of $T" for (T, name) in ELEMENTS if name == wanted[1]])
    isempty(words) ? text : string(text, " (Julia: ", join(unique(words), ", "), ")")
end
const ELEMENTS = ("Float32" => "f32", "Float16" => "f16", "BFloat16" => "bf16", "E4M3" => "e4m3",
    "E5M2" => "e5m2", "Int8" => "i8", "Int32" => "i32", "Int64" => "i64", "UInt8" => "u8")
rank_of(params, field) = hasfield(typeof(params), field) ? rank_of(getfield(params, field)) : 0
rank_of(x) = hasfield(typeof(x), :ndim) ? Int(x.ndim) : 0

@noinline function fail(status, params=nothing)
    text = in_julia(unsafe_string(fovea_last_error()), params)
    status == FOVEA_INVALID_ARGUMENT && throw(InvalidArgument(text))
    status == FOVEA_UNSUPPORTED && throw(Unsupported(text))
    status == FOVEA_OUT_OF_MEMORY && throw(OutOfMemory(text))
    status == FOVEA_DEVICE_ERROR && throw(DeviceError(text))
    throw(InternalError(text))
end
check(status) = status == FOVEA_OK ? nothing : fail(status)
@noinline invalid(text...) = throw(InvalidArgument(string(text...)))

"The number of a name of an enum, `what` being the field that it was given as."
@inline enumerated(names, what, x::Integer) = number(Int32, what, x)
function enumerated(names, what, x)
    x isa Symbol && haskey(names, x) && return names[x]
    invalid(what, " is ", repr(x), ", wanted ", join((":$name" for name in keys(names)), ", ", " or "))
end

"A number of a call as the library takes it."
@inline function number(::Type{T}, what, x) where {T}
    x isa T && return x
    x isa Bool && return T(x)
    T === Float32 && x isa Real && return T(x)
    T <: Integer && x isa Int && typemin(T) <= x <= typemax(T) && return x % T
    converted(T, what, x)
end
@noinline function converted(::Type{T}, what, x) where {T}
    y = try convert(T, x) catch; nothing end
    y isa T ? y : invalid(what, " is ", repr(x), ", wanted a number of type ", T)
end
