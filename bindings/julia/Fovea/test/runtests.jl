# SPDX-License-Identifier: Apache-2.0
using Fovea
using Libdl
using Markdown
using Test

include("abi.jl")
include("golden.jl")

"o and lse of causal attention in Float64, by the formula; sizes as the library's, reversed."
function reference(q, k, v)
    d, heads, rows, batch = size(q)
    keys, group = size(k, 3), heads ÷ size(k, 2)
    o, lse = zeros(size(v, 1), heads, rows, batch), zeros(rows, heads, batch)
    for n in 1:batch, h in 1:heads, i in 1:rows
        g = (h - 1) ÷ group + 1
        seen = 1:(i+keys-rows)
        scores = [sum(Float64.(q[:, h, i, n]) .* Float64.(k[:, g, j, n])) / sqrt(d) for j in seen]
        lse[i, h, n] = log(sum(exp, scores))
        p = exp.(scores .- lse[i, h, n])
        o[:, h, i, n] = sum(p[j] .* Float64.(v[:, g, j, n]) for j in seen)
    end
    o, lse
end

sequence(T, salt, dims...) =
    reshape([T(((i * 37 + 11 * salt) % 101) / 50 - 1) for i in 0:prod(dims)-1], dims)
problem(T=Float32) =
    sequence(T, 1, 8, 4, 5, 2), sequence(T, 2, 8, 2, 7, 2), sequence(T, 3, 6, 2, 7, 2)

"An array of one element under strides of 0, as lazy fills are."
struct Repeated{T,N} <: DenseArray{T,N}
    one::Vector{T}
    dims::NTuple{N,Int}
end
Base.size(x::Repeated) = x.dims
Base.strides(x::Repeated) = map(_ -> 0, x.dims)
Base.getindex(x::Repeated, ::Int...) = x.one[1]
Base.unsafe_convert(::Type{Ptr{T}}, x::Repeated{T}) where {T} = pointer(x.one)

"Attention with a bias, (keys, s, h, b), in Float64: its output and the gradient of the bias."
function biased(q, k, v, bias, sink, dout)
    d, heads, rows, batch = size(q)
    group, o, dbias = heads ÷ size(k, 2), zeros(size(v, 1), heads, rows, batch), zeros(size(bias))
    for n in 1:batch, h in 1:heads, i in 1:rows
        g = (h - 1) ÷ group + 1
        scores = Float64.(k[:, g, :, n])' * Float64.(q[:, h, i, n]) ./ sqrt(d) .+ bias[:, i, h, n]
        p = exp.(scores) ./ (sum(exp, scores) + exp(sink[h]))
        o[:, h, i, n] = Float64.(v[:, g, :, n]) * p
        dp = Float64.(v[:, g, :, n])' * Float64.(dout[:, h, i, n])
        dbias[:, i, h, n] = p .* (dp .- sum(p .* dp))
    end
    o, dbias
end

@testset "Fovea" begin
    @testset "layout of $T" for (T, size, fields) in LAYOUT
        @test sizeof(T) == size
        @test collect(fieldnames(T)) == first.(fields)
        @test [fieldoffset(T, i) for i in 1:fieldcount(T)] == last.(fields)
    end

    @testset "facts" begin
        @test Fovea.version() >= 100
        @test occursin("attention_forward", Fovea.build(:operations))
        @test device_count(:host) == 1
        ctx = Context(:host)
        @test last_kernel(ctx) == ""
        @test property(set_threads!(ctx, 2), :threads) == 2
        @test_throws Fovea.InvalidArgument property(ctx, 99)
        @test_throws Fovea.InvalidArgument property(ctx, :nonsense)
        wait_for!(ctx, Context(:host))
        synchronize(ctx)
        close(ctx)
        close(ctx)
        @test_throws Fovea.InvalidArgument synchronize(ctx)
    end

    @testset "finding the library" begin
        given = Fovea.library_path()
        @test isabspath(given) && occursin("libfovea", given)
        mktempdir() do root
            lookup(; keys...) = Fovea.find_library(; given="", chosen=nothing, jll=nothing, root=root,
                system="libnowhere_fovea.so", keys...)
            refused(; keys...) = try lookup(; keys...) catch e sprint(showerror, e) end
            text = refused()
            for words in ("LibraryError: ", "FOVEA_LIBRARY: not set", "preference `library`: not set",
                    "Fovea_jll: not loaded", "$root: not a checkout", "the system: ", "libnowhere", "cmake --build")
                @test occursin(words, text)
            end
            place(folder) = joinpath(mkpath(joinpath(root, folder)), Fovea.FILE)
            touch(joinpath(mkpath(joinpath(root, "include", "fovea")), "core.h"))
            mkpath(joinpath(root, "build"))
            @test occursin(joinpath(root, "lib") * ": no ", refused())
            symlink(given, place("build/h/lib"))
            @test lookup()[2] == place("build/h/lib")
            symlink(given, place("lib"))
            @test lookup()[2] == place("lib")
            foreign = first(filter(x -> occursin("libjulia", x), Libdl.dllist()))
            @test lookup(jll=foreign)[2] == place("lib")
            @test occursin("$foreign has no fovea_version", refused(jll=foreign, root=joinpath(root, "none")))
            @test lookup(jll=given)[2] == given
            @test lookup(chosen=given, jll=place("lib"))[2] == given
            @test lookup(given=given, chosen="/nowhere.so")[2] == given
            text = refused(given="/nowhere.so")
            @test occursin("FOVEA_LIBRARY: ", text) && occursin("/nowhere.so", text) && !occursin("\n", text)
            @test occursin("preference `library`: ", refused(chosen="/nowhere.so"))
        end
    end

    precisions = ((Float32, 1e-6), (Float16, 2e-3), (BFloat16, 1.6e-2))
    @testset "attention in $T" for (T, tolerance) in precisions
        ctx = Context(:host)
        q, k, v = problem(T)
        want_o, want_lse = reference(Float32.(q), Float32.(k), Float32.(v))
        o, lse = attention_forward(ctx, q, k, v; causal=true, lse=true)
        @test startswith(last_kernel(ctx), "attention_forward.host")
        @test last_plan(ctx) == last_kernel(ctx) && last_reasons(ctx) == ""
        @test eltype(o) == T && size(o) == (6, 4, 5, 2) && size(lse) == (5, 4, 2)
        @test maximum(abs.(Float64.(Float32.(o)) .- want_o)) <= tolerance
        @test maximum(abs.(lse .- want_lse)) <= 2e-6
        @test attention_forward(ctx, q, k, v; causal=true) == o
        mine = similar(o)
        @test attention_forward(ctx, q, k, v; o=mine, causal=true) === mine
        @test mine == o
        @test workspace(ctx, attention_forward, q, k, v; causal=true, lse=true) isa Int
    end

    @testset "views and permutations" begin
        ctx = Context(:host)
        q, k, v = problem()
        o = attention_forward(ctx, q, k, v)
        wide = fill(NaN32, 8, 8, 5, 2)
        wide[:, 1:2:8, :, :] = q
        @test attention_forward(ctx, view(wide, :, 1:2:8, :, :), k, v) == o
        turned = PermutedDimsArray(permutedims(q, (1, 3, 2, 4)), (1, 3, 2, 4)) # heads outermost
        @test attention_forward(ctx, turned, k, v) == o
        into = fill(NaN32, 8, 4, 5, 2)
        attention_forward(ctx, q, k, v; o=view(into, 1:6, :, :, :))
        @test into[1:6, :, :, :] == o && all(isnan, into[7:8, :, :, :])
        @test_throws Fovea.InvalidArgument attention_forward(ctx, view(q, 8:-1:1, :, :, :), k, v)
    end

    @testset "masks of Bool" begin
        ctx = Context(:host)
        q, k, v = problem()
        full = (7, 5, 4, 2) # (keys, s, h, b)
        random(dims) = reshape([(i * i * 37 + 11 * i) % 101 < 60 for i in 1:prod(dims)], dims)
        @testset "$dims" for dims in (full, (7, 5, 4), (7, 5), (7,), (7, 1, 4), (1, 5), (7, 5, 1, 2), (1,))
            seen = random(dims)
            none = zeros(full) .+ ifelse.(seen, 0.0, -Inf)
            want, _ = biased(q, k, v, none, fill(-200.0, 4), zeros(6, 4, 5, 2))
            for mask in (seen, BitArray(seen), view(cat(seen, seen; dims=ndims(seen) + 1), axes(seen)..., 1))
                o = attention_forward(ctx, q, k, v; mask=mask)
                @test maximum(abs.(o .- want)) <= 1e-6
            end
            device = attention_forward(ctx, q, k, v; mask=DeviceArray(ctx, collect(seen)))
            @test device == attention_forward(ctx, q, k, v; mask=seen)
            @test workspace(ctx, attention_forward, q, k, v; mask=seen) isa Int
        end
        seen = random((7, 5))
        bits = [sum(UInt8(seen[j, i]) << (j - 1) for j in 1:7) % UInt8 for _ in 1:1, i in 1:5]
        @test attention_forward(ctx, q, k, v; mask=bits) == attention_forward(ctx, q, k, v; mask=seen)
        wide = sequence(Float32, 5, 8, 2, 13, 2), sequence(Float32, 6, 6, 2, 13, 2)
        for j in (1, 8, 9, 13) # the key alone that a row sees
            @test attention_forward(ctx, q, wide...; mask=(1:13) .== j)[:, 1, 3, 2] ≈ wide[2][:, 1, j, 2]
        end
        caught(f) = try f() catch e e end
        for mask in (ones(UInt8, full), trues(6, 5), trues(full..., 1), zeros(UInt8, 1, 4))
            e = caught(() -> attention_forward(ctx, q, k, v; mask=mask))
            @test e isa Fovea.InvalidArgument && startswith(e.text, "attention_forward: mask has size")
        end
        e = caught(() -> attention_forward(ctx, q, k, v; mask=ones(UInt8, full)))
        @test occursin("a bit for each of 7: give a Bool array", e.text)
        e = caught(() -> attention_forward(ctx, q, k, v; bias=trues(full)))
        @test e isa Fovea.InvalidArgument && occursin("give it as mask", e.text)
        x, y = sequence(Float32, 1, 8, 2, 40, 1), sequence(Float32, 2, 8, 1, 150, 1)
        blocks = random((10, 3))
        trace(m) = trace_forward(ctx, x, y; keep=2, block_rows=16, block_keys=16, selected=true, block_mask=m)
        got = trace(blocks)
        @test all(n < 0 || blocks[n+1, i] for i in 1:3, h in 1:2 for n in got[:, i, h, 1])
        pool = reshape(cat(y, zeros(Float32, 8, 1, 10, 1); dims=3), 8, 1, 16, 10)
        table = reshape(Int32.(0:9), 10, 1)
        paged = trace_forward(ctx, x, pool; page_table=table, key_len=Int32[150], keep=2, block_rows=16,
            block_keys=16, selected=true, block_mask=blocks)
        @test paged == got
    end

    @testset "biases broadcast, their gradients sum" begin
        ctx = Context(:host)
        q, k, v = problem()
        sink, dout = sequence(Float32, 7, 4), sequence(Float32, 4, 6, 4, 5, 2)
        full = (7, 5, 4, 2)
        @testset "$dims" for dims in (full, (7, 5, 4), (7, 5), (7,), (1, 5), (1, 1, 4), (1, 1, 1, 2), (1,))
            bias = sequence(Float32, 9, dims...)
            want_o, want = biased(q, k, v, zeros(full) .+ bias, sink, dout)
            o, lse = attention_forward(ctx, q, k, v; bias=bias, sink_logit=sink, lse=true)
            @test maximum(abs.(o .- want_o)) <= 1e-6
            options = (bias=bias, sink_logit=sink, dq=false, dk=false, dv=false)
            summed(dims) = (kept = ntuple(i -> i > length(dims) ? 1 : dims[i], 4);
                reshape(sum(want; dims=findall(==(1), collect(kept))), dims))
            got = attention_backward(ctx, q, k, v, o, lse, dout; dbias=true, options...)
            @test size(got) == dims && eltype(got) == Float32
            @test maximum(abs.(got .- summed(dims))) <= 2e-5
            mine = fill(NaN32, 7, 1, 4)
            @test attention_backward(ctx, q, k, v, o, lse, dout; dbias=mine, options...) === mine
            @test maximum(abs.(mine .- summed((7, 1, 4)))) <= 2e-5
            device = attention_backward(ctx, q, k, v, o, lse, dout; dbias=true, options...,
                bias=DeviceArray(ctx, bias))
            @test device == got
            @test workspace(ctx, attention_backward, q, k, v, o, lse, dout; dbias=true, options...) isa Int
        end
        one = ones(Float32, 8, 1, 1, 1) # a single score
        o, lse = attention_forward(ctx, one, one, one; bias=[0.5f0], lse=true)
        @test attention_backward(ctx, one, one, one, o, lse, o; bias=[0.5f0], dbias=true, dq=false,
            dk=false, dv=false) == [0f0]
        caught(f) = try f() catch e e end
        e = caught(() -> attention_forward(ctx, q, k, v; bias=zeros(Float32, 7, 5, 3, 2)))
        @test startswith(e.text, "attention_forward: bias.shape[1] (h) is 3, wanted 4")
        e = caught(() -> attention_forward(ctx, q, k, v; bias=zeros(Float32, 6, 5)))
        @test startswith(e.text, "attention_forward: bias has size (6, 5), wanted (7, 5, 4, 2)")
    end

    @testset "arrays that repeat one element" begin
        ctx = Context(:host)
        q, k, v = problem()
        o, lse = attention_forward(ctx, q, k, v; lse=true)
        dout = Repeated([0.5f0], size(o))
        @test attention_backward(ctx, q, k, v, o, lse, dout) ==
              attention_backward(ctx, q, k, v, o, lse, fill(0.5f0, size(o)))
        lengths = Repeated(Int32[4], (2,))
        @test attention_forward(ctx, q, k, v; key_len=lengths) ==
              attention_forward(ctx, q, k, v; key_len=fill(Int32(4), 2))
        @test workspace(ctx, attention_backward, q, k, v, o, lse, dout) > 0
        @test_throws Fovea.InvalidArgument attention_forward(ctx, q, k, v; o=Repeated([0f0], size(o)))
    end

    @testset "gradients" begin
        ctx = Context(:host)
        q, k, v = problem()
        o, lse = attention_forward(ctx, q, k, v; causal=true, lse=true)
        dout = sequence(Float32, 4, size(o)...)
        gradients = attention_backward(ctx, q, k, v, o, lse, dout; causal=true)
        @test keys(gradients) == (:dq, :dk, :dv)
        loss(q, k, v) = sum(Float64.(dout) .* reference(q, k, v)[1])
        inputs = (q, k, v)
        for (at, dx) in enumerate(gradients), i in (1, 17, 60)
            step = zeros(size(dx))
            step[i] = 1e-4
            moved(sign) = [n == at ? y .+ sign .* step : Float64.(y) for (n, y) in enumerate(inputs)]
            @test dx[i] ≈ (loss(moved(1)...) - loss(moved(-1)...)) / 2e-4 atol = 2e-5
        end
        only_dv = attention_backward(ctx, q, k, v, o, lse, dout; causal=true, dq=false, dk=false)
        @test only_dv == gradients.dv
        @test workspace(ctx, attention_backward, q, k, v, o, lse, dout; causal=true) > 0
    end

    @testset "rope and caches" begin
        ctx = Context(:host)
        cosine, sine = zeros(Float32, 4, 16), zeros(Float32, 4, 16)
        table = rope_table_get!(ctx, cosine, sine; scaling=:linear, factor=2)
        @test table.cos === cosine && table.sin === sine
        @test cosine[2, 4] ≈ cos(3 * 10000^(-1 / 4) / 2)
        @test_throws Fovea.InvalidArgument rope_table_get!(ctx, cosine, sine; scaling=:cubic)
        x = sequence(Float32, 1, 8, 2, 5, 1)
        y = rope_forward(ctx, x, cosine, sine)
        @test rope_forward(ctx, y, cosine, sine; inverse=true) ≈ x
        @test rope_forward(ctx, x, cosine, sine; y=x) === x == y

        pool = zeros(Float32, 8, 2, 4, 3) # 3 pages of 4 tokens
        table = reshape(Int32[2, 0], 2, 1) # entries count from 0
        paged = (k=pool, page_table=table, key_len=Int32[0])
        len = cache_append!(ctx; k_new=x, paged..., key_len_out=true)
        @test len == Int32[5]
        @test pool[:, :, :, 3] == x[:, :, 1:4, 1] && pool[:, :, 1, 1] == x[:, :, 5, 1]
        back = fill(NaN32, 8, 2, 5, 1)
        @test cache_get!(ctx, back, pool; page_table=table, key_len=len) === back == x
        pairs = reshape(Int32[2, 1, 0, 0], 2, 2) # 2 to 1, 0 to 0
        moved = cache_copy!(ctx, zero(pool), pool, pairs)
        @test moved[:, :, :, 1:2] == pool[:, :, :, [1, 3]] && iszero(moved[:, :, :, 3])
        small = zeros(E4M3, 8, 2, 5, 1)
        @test cache_append!(ctx; k_new=x, k=small, key_len_out=true) == Int32[5]
        @test cache_append!(ctx; k_new=x, k=small) === nothing
        @test maximum(abs.(Float32.(small) .- x)) <= 1 / 16
    end

    @testset "rows of states" begin
        ctx = Context(:host)
        q = rand(Float32, 8, 2, 5, 3)
        state = x_gla_forward(ctx, q, q, q; state_out=true)
        @test size(state) == (8, 8, 2, 3) && eltype(state) == Float32 && any(!iszero, state)
        @test x_gla_forward(ctx, q, q, q; state_in=zero(state), state_out=true) == state
        packed = x_gla_forward(ctx, reshape(q, 8, 2, 15, 1), reshape(q, 8, 2, 15, 1), reshape(q, 8, 2, 15, 1);
                               start=Int32[0, 5, 10, 15], token_max=5, state_out=true)
        @test packed == state
        @test_throws Fovea.InvalidArgument x_gla_forward(ctx, q, q, q; state_out=true, state_out_row=Int32[0, 1, 2])
    end

    @testset "memory of the context" begin
        ctx = Context(:host)
        q, k, v = problem()
        o, lse = attention_forward(ctx, map(x -> DeviceArray(ctx, x), (q, k, v))...; lse=true)
        @test o isa DeviceArray{Float32,4} && size(o) == (6, 4, 5, 2)
        @test Array(o) == attention_forward(ctx, q, k, v)
        for i in 1:200
            DeviceArray{Float32}(ctx, 1000)
            i % 50 == 0 && GC.gc()
        end
        @test ctx.live < 200
        @test_throws Fovea.InvalidArgument attention_forward(Context(:host), o, o, o)
        @test_throws Fovea.InvalidArgument copyto!(zeros(Float32, 3), o)
        close(ctx)
        @test_throws Fovea.InvalidArgument Array(o)
    end

    @testset "docstrings are shown as they are meant" begin
        slanted(x::Markdown.Italic) = [Markdown.plaininline(x)]
        slanted(x::AbstractVector) = reduce(vcat, map(slanted, x); init=String[])
        slanted(x) = reduce(vcat, [slanted(getproperty(x, name)) for name in
            (:content, :text, :items, :rows) if hasproperty(x, name)]; init=String[])
        slanted(::AbstractString) = String[]
        seen = 0
        for (binding, all) in Base.Docs.meta(Fovea), one in values(all.docs)
            seen += 1
            @test (binding, slanted(Markdown.parse(join(one.text)))) == (binding, String[])
        end
        @test seen > 50
        @test slanted(Markdown.parse("row or page_table or cache_row")) == ["*table or cache*"]
    end

    @testset "errors" begin
        ctx = Context(:host)
        q, k, v = problem()
        caught(f) = try f() catch e e end
        e = caught(() -> attention_forward(ctx, q, k, v[:, :, 1:6, :]))
        @test e isa Fovea.InvalidArgument && startswith(e.text, "attention_forward: v.shape[1]")
        @test occursin(e.text, sprint(showerror, e))
        @test caught(() -> attention_forward(ctx, q, Float16.(k), v)) isa Fovea.InvalidArgument
        @test caught(() -> attention_forward(ctx, q, ComplexF32.(k), v)) isa Fovea.InvalidArgument
        says(f, kind, words...) = (e = caught(f); @test e isa kind;
            @test (e, [w for w in words if !occursin(w, sprint(showerror, e))]) == (e, String[]))
        Wrong = Fovea.InvalidArgument
        # The library's sentence stays whole; Julia's names stand behind it.
        attend(; keys...) = attention_forward(ctx, q, k, v; keys...)
        says(() -> attention_forward(ctx, q, zeros(Float32, 8, 3, 7, 2), zeros(Float32, 6, 3, 7, 2)), Wrong,
            "k.shape[2] (g) is 3, wanted a divisor of q's 4 heads: (b, s, h, d), not SDPA's order (Julia: size(k, 2), (d, h, s, b))")
        says(() -> workspace(ctx, attention_forward, q, k, v[:, :, 1:6, :]), Wrong,
            "v.shape[1] (t) is 6, wanted 7 as in k (Julia: size(v, 3))")
        says(() -> attend(; lse=zeros(Float32, 5, 4, 3)), Wrong, "lse.shape[0] (b) is 3", "(Julia: size(lse, 3))")
        says(() -> attention_forward(ctx, q[:, :, :, 1], k, v), Wrong, "wanted 4: (b, s, h, d) (Julia: (d, h, s, b))")
        says(() -> attend(; o=view(zeros(Float32, 6, 4, 5, 2), 6:-1:1, :, :, :)), Wrong, "o.stride[3] is -1", "(Julia: stride(o, 1))")
        says(() -> attend(; key_len=[5, 5]), Wrong, "key_len.dtype is i64, wanted i32 (Julia: elements of Int32)")
        overlapping = Fovea.in_julia("op: o.stride[1] is 4, wanted more than 7, which axis 2 reaches", (o=(ndim=4,),))
        @test endswith(overlapping, "reaches (Julia: stride(o, 3), dimension 2)")
        @test Fovea.in_julia("op: x.shape[0] is 1", (y=(ndim=4,),)) == "op: x.shape[0] is 1"
        # What the library has no elements for, or is no array.
        says(() -> attention_forward(ctx, Float64.(q), k, v), Wrong, "attention_forward: q is an array of Float64", "Float32.(q)")
        says(() -> attend(; bias=zeros(7, 5)), Wrong, "attention_forward: bias is an array of Float64")
        says(() -> attend(; o=zeros(6, 4, 5, 2)), Wrong, "attention_forward: o is an array of Float64")
        says(() -> attend(; mask=zeros(7, 5)), Wrong, "mask is an array of Float64, wanted Bool of size (7, 5, 4, 2)")
        says(() -> attend(; key_len=UInt32[5, 5]), Wrong, "key_len is an array of UInt32", "Int32.(key_len)")
        says(() -> attention_forward(ctx, q .> 0, k, v), Wrong, "q is an array of Bool", "only masks")
        says(() -> attention_forward(ctx, nothing, k, v), Wrong, "attention_forward: q is nothing, wanted an array")
        says(() -> attend(; mask=3), Wrong, "mask is of type Int64, wanted an array")
        says(() -> attend(; key_len=Int32(1):Int32(2)), Wrong, "key_len is of type UnitRange{Int32}", "collect(key_len)")
        says(() -> rope_table_get!(ctx, zeros(4, 16), zeros(4, 16)), Wrong, "rope_table_get: cos is an array of Float64")
        says(() -> attend(; scale="x"), Wrong, "attention_forward: scale is \"x\", wanted a number of type Float32")
        says(() -> attend(; window_left=2.5), Wrong, "attention_forward: window_left is 2.5")
        # A context that was forgotten, closed, or of no backend.
        says(() -> attention_forward(q, k, v), Wrong, "ctx is of type $(typeof(q)), wanted a Context: attention_forward(ctx, q, k, v)")
        says(() -> attention_forward(q, k, v, v), Wrong, "attention_forward: ctx is of type")
        says(() -> attention_forward(), Wrong, "attention_forward: ctx is missing")
        says(() -> attention_forward(ctx, q, k), Wrong, "got 3 arguments, wanted attention_forward(ctx, q, k, v)")
        says(() -> workspace(attention_forward, q, k, v), Wrong, "workspace: ctx is of type")
        says(() -> cache_copy!(k, k), Wrong, "cache_copy!: ctx is of type")
        says(() -> Context("host"), Wrong, "Context: backend is \"host\", wanted :host or :cuda")
        says(() -> Context(:host, "0"), Wrong, "Context: device is \"0\"")
        says(() -> device_count(:tpu), Wrong, "device_count: backend is :tpu")
        says(() -> property(ctx, :x), Wrong, "property: key is :x, wanted :backend, ")
        says(() -> rope_table_get!(ctx, zeros(Float32, 4, 16), zeros(Float32, 4, 16); scaling=:cubic), Wrong,
            "rope_table_get: scaling is :cubic, wanted :none, :linear")
        says(() -> set_stream!(ctx, "x"), Wrong, "set_stream!: stream is \"x\", wanted a cudaStream_t")
        says(() -> set_workspace!(ctx, 5), Wrong, "set_workspace!: x is of type Int64, wanted an array")
        says(() -> set_workspace!(ctx, "x"), Wrong, "set_workspace!: x is of type String, wanted an arr")
        says(() -> wait_for!(ctx, 5), Wrong, "wait_for!: other is of type Int64, wanted a Context")
        says(() -> workspace(ctx, q, k, v), Wrong, "workspace: op is of type Array", "wanted an operation")
        says(() -> workspace(ctx, (_...) -> nothing, q), Wrong, "workspace: op is #", "wanted an oper")
        kept = Ref(ctx)
        @test Context(c -> (kept[] = c; attention_forward(c, q, k, v)), :host) == attend()
        @test Context(c -> attention_forward(c, q, k, v), :cpu, 0) == attend()
        says(() -> attention_forward(kept[], q, k, v), Wrong, "ctx is closed, wanted an open one")
        says(() -> Context(c -> (kept[] = c; error("inside"))), ErrorException, "inside")
        says(() -> synchronize(kept[]), Wrong, "ctx is closed")
        six = zeros(Float32, 1, 1, 1, 1, 1, 1)
        @test caught(() -> attention_forward(ctx, six, k, v)) isa Fovea.InvalidArgument
        @test caught(() -> Context(:tpu)) isa Fovea.InvalidArgument
        @test caught(() -> Context(:host, 7)) isa Fovea.InvalidArgument
        device_count(:cuda) == 0 && @test caught(() -> Context(:cuda)) isa Fovea.FoveaError
        o, lse = attention_forward(ctx, q, k, v; lse=true)
        block = DeviceArray{UInt8}(ctx, 1)
        set_workspace!(ctx, block)
        @test caught(() -> attention_backward(ctx, q, k, v, o, lse, o)) isa Fovea.OutOfMemory
        set_workspace!(ctx, nothing)
        @test keys(attention_backward(ctx, q, k, v, o, lse, o)) == (:dq, :dk, :dv)
        parts = zeros(Float32, 8, 4, 5, 1, 2), zeros(Float32, 5, 4, 1, 2)
        @test size(merge_forward(ctx, parts...)) == (8, 4, 5, 1)
        e = caught(() -> merge_forward(ctx, parts...; row=zeros(Int32, 5, 2)))
        @test e isa Fovea.InvalidArgument && occursin("give the array o", e.text)
    end

    @testset "contexts side by side" begin
        q, k, v = problem()
        want = attention_forward(Context(:host), q, k, v)
        tasks = map(1:4) do _
            Threads.@spawn begin
                ctx = Context(:host)
                all(attention_forward(ctx, q, k, v) == want for _ in 1:50)
            end
        end
        @test all(fetch.(tasks))
    end

    @testset "bfloat16" begin
        @test Float32(BFloat16(1.0f0)) == 1 && Float32(BFloat16(-3.140625f0)) == -3.140625f0
        @test reinterpret(UInt16, BFloat16(1.00390625f0)) == 0x3f80 # a tie goes to even
        @test reinterpret(UInt16, BFloat16(1.01171875f0)) == 0x3f82
        @test isnan(BFloat16(NaN)) && Float32(BFloat16(Inf32)) == Inf32
        @test Float32(BFloat16(floatmax(Float32))) == Inf32
        @test BFloat16(2) * BFloat16(3) + BFloat16(1) == BFloat16(7)
        @test Float32(reinterpret(E4M3, 0x7e)) == 448 && isnan(Float32(reinterpret(E4M3, 0x7f)))
        @test Float32(reinterpret(E4M3, 0x81)) == -2.0f0^-9
        @test Float32(reinterpret(E5M2, 0x7b)) == 57344
    end

    @testset "attention of codes gives floats" begin
        ones = fill(reinterpret(E4M3, 0x38), (16, 2, 4, 1))  # (d, h, s, b) of 1
        o = quant_forward(Context(:host), ones, ones; v=ones)
        @test o isa Array{Float32,4} && size(o) == size(ones) && all(o .== 1)
    end

    @testset "methods by name" begin
        ctx, x = Context(:host), rand(Float32, 16, 2, 9, 1)
        streaming = recipe("streamingllm")
        @test streaming(ctx, x, x, x; window_left=2) ==
            attention_forward(ctx, x, x, x; causal=true, sink_keys=4, window_left=2)
        @test streaming.numbers == Dict(:causal => 1, :sink_keys => 4, :window_left => 2000)
        @test workspace(ctx, streaming, x, x, x) > 0
        @test sprint(show, streaming) == "recipe(\"streamingllm\"): StreamingLLM, arXiv 2309.17453"
        @test_throws Fovea.InvalidArgument("recipe: there is no 'streaming', wanted streamingllm") recipe("streaming")
        @test_throws Fovea.InvalidArgument recipe(:streamingllm)
        @test_throws Fovea.InvalidArgument recipe("moa\0")
        why = try recipe("moa")(ctx, x, x, x) catch why; why end
        @test startswith(why.text, "recipe moa: head_window is absent, wanted one: ")
        mass = zeros(Float32, 9, 1, 1)
        @test recipe("h2o")(ctx, x, x, x; mass=mass) == attention_forward(ctx, x, x, x; causal=true)
        @test sum(mass) ≈ 18
    end

    @testset "golden vectors" begin
        folder = normpath(joinpath(@__DIR__, "..", "..", "..", "..", "tests", "golden"))
        files = filter(endswith(".safetensors"), readdir(folder; join=true))
        ctx = Context(:host)
        seen = String[]
        @testset "$(basename(file))" for file in files
            push!(seen, test_golden(ctx, file))
        end
        @test issubset(first.(OPS), seen)
        @test issubset([method.name for method in recipes()], seen)
    end
end
