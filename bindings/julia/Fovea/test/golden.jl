# SPDX-License-Identifier: Apache-2.0
# Golden vectors (format: tests/harness/golden.h) and as much JSON as their headers need.

mutable struct Reader
    text::Vector{UInt8}
    at::Int
end

parse_json(text) = value!(Reader(Vector{UInt8}(text), 1))

function peek!(r)
    while Char(r.text[r.at]) in " \t\r\n"
        r.at += 1
    end
    Char(r.text[r.at])
end

function want!(r, mark)
    peek!(r) == mark || error("JSON: wanted $mark at byte $(r.at)")
    r.at += 1
end

function items!(item, r, open, close)
    want!(r, open)
    while peek!(r) != close
        item()
        peek!(r) == close || want!(r, ',')
    end
    want!(r, close)
end

function value!(r)
    mark = peek!(r)
    if mark == '{'
        map = Dict{String,Any}()
        items!(r, '{', '}') do
            key = string!(r)
            want!(r, ':')
            map[key] = value!(r)
        end
        return map
    elseif mark == '['
        list = Any[]
        items!(() -> push!(list, value!(r)), r, '[', ']')
        return list
    end
    mark == '"' ? string!(r) : number!(r)
end

function string!(r)
    want!(r, '"')
    out = UInt8[]
    while r.text[r.at] != UInt8('"')
        if r.text[r.at] == UInt8('\\')
            r.at += 1
            Char(r.text[r.at]) in "\"\\/" || error("JSON: escape at byte $(r.at)")
        end
        push!(out, r.text[r.at])
        r.at += 1
    end
    r.at += 1
    String(out)
end

function number!(r)
    start = r.at
    while r.at <= length(r.text) && Char(r.text[r.at]) in "+-.0123456789eE"
        r.at += 1
    end
    text = String(r.text[start:r.at-1])
    something(tryparse(Int, text), tryparse(Float64, text), Some(nothing))
end

const GOLDEN_TYPES = Dict("F32" => Float32, "F16" => Float16, "BF16" => BFloat16, "I32" => Int32, "I64" => Int64,
                          "U8" => UInt8, "I8" => Int8, "F8_E4M3" => E4M3, "F8_E5M2" => E5M2)

"The metadata and the tensors of a file; sizes reversed, so the bytes stay as they are."
function read_golden(path)
    bytes = read(path)
    length = Int(reinterpret(UInt64, bytes[1:8])[1])
    header = parse_json(bytes[9:8+length])
    tensors = Dict{Symbol,Array}()
    for (name, entry) in header
        name == "__metadata__" && continue
        first, last = entry["data_offsets"]
        values = reinterpret(GOLDEN_TYPES[entry["dtype"]], bytes[9+length+first:8+length+last])
        tensors[Symbol(name)] = reshape(collect(values), Tuple(Int.(reverse(entry["shape"]))))
    end
    header["__metadata__"], tensors
end

"NaN, or an unlikely integer, wherever an output is not written."
poisoned(x::Array{T}) where {T<:AbstractFloat} = fill!(similar(x), T(NaN))
poisoned(x::Array{T}) where {T<:Integer} = fill!(similar(x), typemin(T))
poisoned(x::Array{T}) where {T<:Union{E4M3,E5M2}} = fill!(similar(x), reinterpret(T, 0xff))

near(got::Integer, want::Integer, tolerance) = got == want
function near(got, want, tolerance)
    g, w = Float64(Float32(got)), Float64(Float32(want))
    g == w || (isnan(g) && isnan(w)) || abs(g - w) <= tolerance * (1 + abs(w))
end

"Calls the operation of a file by its name, or the method that it names, and tests every output."
function test_golden(ctx, path)
    meta, tensors = read_golden(path)
    row = findfirst(op -> op[1] == meta["op"], OPS)
    @test row !== nothing
    _, call, positional = OPS[row]
    haskey(meta, "recipe") && (call = recipe(meta["recipe"]))
    outputs = Symbol.(split(meta["outputs"], ','))
    after(name) = Symbol(name, ".after")
    before(name) = !endswith(string(name), ".after")
    given = Dict{Symbol,Any}(name => x for (name, x) in tensors if before(name))
    for name in outputs
        given[name] = haskey(tensors, after(name)) ? copy(tensors[name]) : poisoned(tensors[name])
    end
    written = Dict(name => given[name] for name in outputs)
    arguments = [pop!(given, name) for name in positional]
    for (name, number) in parse_json(meta["params"])
        given[Symbol(name)] = number
    end
    call(ctx, arguments...; given...)
    for name in outputs
        want = get(tensors, after(name), tensors[name])
        @test all(near.(written[name], want, parse(Float64, meta["tolerance"])))
    end
    haskey(meta, "recipe") ? meta["recipe"] : meta["op"]
end
