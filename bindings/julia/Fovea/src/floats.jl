# SPDX-License-Identifier: Apache-2.0
# Element types that Julia lacks: bfloat16, and the two 8-bit floats that caches are stored in.

"bfloat16: the upper half of a Float32.  Rounds to nearest even."
primitive type BFloat16 <: AbstractFloat 16 end
"8-bit float, 4 exponent bits, no infinities: storage of `cache_append!`, codes of `quant_quantize!`, converts to Float32."
primitive type E4M3 8 end
"8-bit float, 5 exponent bits: storage of `cache_append!`, converts to Float32."
primitive type E5M2 8 end

function BFloat16(x::Float32)
    bits = reinterpret(UInt32, x)
    isnan(x) && return reinterpret(BFloat16, UInt16(bits >> 16) | 0x0040)
    reinterpret(BFloat16, ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) % UInt16)
end
BFloat16(x::BFloat16) = x
BFloat16(x::Real) = BFloat16(Float32(x))
Base.Float32(x::BFloat16) = reinterpret(Float32, UInt32(reinterpret(UInt16, x)) << 16)
Base.Float64(x::BFloat16) = Float64(Float32(x))
(::Type{T})(x::BFloat16) where {T<:Integer} = T(Float32(x))

Base.promote_rule(::Type{BFloat16}, ::Type{<:Integer}) = BFloat16
Base.promote_rule(::Type{T}, ::Type{BFloat16}) where {T<:Union{Float32,Float64}} = T
Base.promote_rule(::Type{Float16}, ::Type{BFloat16}) = Float32
for op in (:+, :-, :*, :/)
    @eval Base.$op(x::BFloat16, y::BFloat16) = BFloat16($op(Float32(x), Float32(y)))
end
for op in (:(==), :<, :<=)
    @eval Base.$op(x::BFloat16, y::BFloat16) = $op(Float32(x), Float32(y))
end
Base.:-(x::BFloat16) = reinterpret(BFloat16, reinterpret(UInt16, x) ⊻ 0x8000)
Base.isnan(x::BFloat16) = isnan(Float32(x))
Base.zero(::Type{BFloat16}) = reinterpret(BFloat16, 0x0000)
Base.one(::Type{BFloat16}) = reinterpret(BFloat16, 0x3f80)
Base.eps(::Type{BFloat16}) = reinterpret(BFloat16, 0x3c00)
Base.show(io::IO, x::BFloat16) = print(io, "BFloat16(", Float32(x), ")")

function Base.Float32(x::E4M3)
    bits = reinterpret(UInt8, x)
    magnitude = bits & 0x7f
    exponent, fraction = Int(magnitude >> 3), Float32(magnitude & 0x07) / 8
    value = exponent == 0 ? fraction * 2.0f0^-6 : (1 + fraction) * 2.0f0^(exponent - 7)
    value = magnitude == 0x7f ? NaN32 : value
    bits > 0x7f ? -value : value
end
Base.Float32(x::E5M2) = Float32(reinterpret(Float16, UInt16(reinterpret(UInt8, x)) << 8))
Base.zero(::Type{T}) where {T<:Union{E4M3,E5M2}} = reinterpret(T, 0x00)
Base.show(io::IO, x::Union{E4M3,E5M2}) = print(io, typeof(x), "(", Float32(x), ")")
