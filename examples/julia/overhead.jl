# SPDX-License-Identifier: Apache-2.0
# Host time of a call that computes nothing: `julia<TAB>median ns` of attention_forward with b = 0.
using Fovea

function main()
    ctx = Context(:host)
    q, k, v, o = (zeros(Float32, 64, 8, 1, 0) for _ in 1:4)
    times = map(1:20000) do _
        start = time_ns()
        attention_forward(ctx, q, k, v; o=o)
        time_ns() - start
    end
    println("julia\t", sort!(times)[end÷2])
end

main()
