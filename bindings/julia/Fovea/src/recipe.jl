# SPDX-License-Identifier: Apache-2.0
# Methods by name: the table of the library.

"""
    recipe(name)

The method of a paper by its name: an operation and the numbers that it is called with.

    recipe("streamingllm")(ctx, q, k, v; window_left=1024)

It is called as its operation, and numbers that are given stand.  Fields: `name`, `title`, `paper` (an
arXiv number), `year`, `operation`, `backward` (the operation that trains it, or ""), `numbers`, `needs`
(fields that must be given) and `words` (what it does here, and what not).  [`recipes`](@ref) lists them.
"""
struct Recipe{F} <: Function
    name::String
    title::String
    paper::String
    year::Int
    operation::String
    backward::String
    numbers::Dict{Symbol,Any}
    needs::Vector{Symbol}
    words::String
    call::F
end

function (method::Recipe)(arguments...; keywords...)
    for name in method.needs
        get(keywords, name, nothing) in (nothing, 0) &&
            invalid("recipe ", method.name, ": ", name, " is absent, wanted one: ", method.words)
    end
    method.call(arguments...; merge(method.numbers, Dict{Symbol,Any}(keywords))...)
end

Base.show(io::IO, method::Recipe) =
    print(io, "recipe(", repr(method.name), "): ", method.title, isdigit(method.paper[1]) ? ", arXiv " : ", ", method.paper)
Base.show(io::IO, ::MIME"text/plain", method::Recipe) = show(io, method)

"A number of a method: of an enum its name."
function recipe_number(text)
    for T in (Int, Float32)
        value = tryparse(T, text)
        value === nothing || return value
    end
    Symbol(text)
end

"The function of an operation, which has a mark where it writes to an argument."
operation(name) = getfield(@__MODULE__, isdefined(@__MODULE__, Symbol(name)) ? Symbol(name) : Symbol(name, "!"))

function Recipe(row::XRecipe)
    told(text) = unsafe_string(text)
    pair(text) = (halves = split(text, "="); Symbol(halves[1]) => recipe_number(halves[2]))
    numbers = Dict{Symbol,Any}(pair(text) for text in split(told(row.numbers)))
    Recipe(told(row.name), told(row.title), told(row.paper), Int(row.year), told(row.operation),
        told(row.backward), numbers, Symbol.(split(told(row.needs))), told(row.words),
        operation(told(row.operation)))
end

blank_recipe() = Ref(XRecipe(sizeof(XRecipe), (Ptr{UInt8}(C_NULL) for _ in 1:8)..., 0))

function recipe(name)
    name isa AbstractString && !occursin('\0', name) ||
        invalid("recipe: name is ", repr(name), ", wanted a string such as \"streamingllm\"")
    row = blank_recipe()
    check(fovea_x_recipe_get(String(name), row))
    Recipe(row[])
end

"Every method that the library has by name."
function recipes()
    map(1:fovea_x_recipe_count()) do number
        row = blank_recipe()
        check(fovea_x_recipe_at(number - 1, row))
        Recipe(row[])
    end
end
