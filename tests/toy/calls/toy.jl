# SPDX-License-Identifier: Apache-2.0
using Fovea
using Printf

ctx = Context(:host)
x = reshape(Float32[1, 2, 3, 4, 5, 6, 7, 8], 2, 1, 4, 1) # (d, h, s, b)
y = zeros(Float32, 2, 1, 4, 1)
toy_forward(ctx, x, reshape(Float32[0.5, 1], 2, 1); bias=Float32[-4], activation=:relu, y=y)
println(join((@sprintf("%.1f", value) for value in y), " "))
