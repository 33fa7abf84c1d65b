# SPDX-License-Identifier: Apache-2.0
# Attention from Julia: causal, 4 queries over 6 keys, 4 query heads on 2 key heads.  The backend is
# the host unless the first argument is "cuda".  Same output as examples/c/attend.c.
#   julia --project=bindings/julia/Fovea examples/julia/attend.jl
using Fovea
using Printf

value(i, salt) = Float32(((i * 37 + 11 * salt) % 101) / 50 - 1)
fill_in(salt, dims...) = reshape([value(i, salt) for i in 0:prod(dims)-1], dims)

ctx = Context(get(ARGS, 1, "host") == "cuda" ? :cuda : :host)

# Memory of the context's device; on the host backend plain arrays would do as well.
q = DeviceArray(ctx, fill_in(1, 8, 4, 4, 1)) # (d, h, s, b)
k = DeviceArray(ctx, fill_in(2, 8, 2, 6, 1)) # (d, g, t, b)
v = DeviceArray(ctx, fill_in(3, 8, 2, 6, 1))

# Optional: valid? how many bytes?
bytes = workspace(ctx, attention_forward, q, k, v; causal=true, lse=true)
o, lse = Array.(Tuple(attention_forward(ctx, q, k, v; causal=true, lse=true)))

for row in 1:4, head in 1:4
    @printf("row %d head %d:", row - 1, head - 1)
    foreach(x -> @printf(" % .6f", x), o[:, head, row, 1])
    @printf(" lse % .6f\n", lse[row, head, 1])
end
println(stderr, "fovea $(Fovea.build(:version)), kernel $(last_kernel(ctx)), workspace $bytes bytes")
