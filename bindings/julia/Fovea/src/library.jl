# SPDX-License-Identifier: Apache-2.0
# Finds and opens libfovea, at the first call.

using Libdl
const library = Ref{Ptr{Cvoid}}(C_NULL)
const library_file = Ref("")

const FILE = "libfovea.$(Libdl.dlext)"
const SONAME = Sys.isapple() ? "libfovea.$FOVEA_VERSION_MAJOR.dylib" :
    Sys.iswindows() ? FILE : "$FILE.$FOVEA_VERSION_MAJOR"
const ROOT = normpath(joinpath(@__DIR__, "..", "..", "..", ".."))
const UUID = Base.UUID("52398914-f26f-4209-9862-aac88145df10")

"The preference `library` of the active project (LocalPreferences.toml), which Julia 1.6 introduced."
preferred() = isdefined(Base, :get_preferences) ? get(Base.get_preferences(UUID), "library", nothing) : nothing

"The file of Fovea_jll, where a program has loaded that package."
function packaged()
    for (id, found) in Base.loaded_modules
        id.name == "Fovea_jll" && isdefined(found, :libfovea_path) && return string(found.libfovea_path)
    end
    nothing
end

"Folders of a checkout that may hold the library: lib, then build folders."
function folders(root)
    isfile(joinpath(root, "include", "fovea", "core.h")) || return String[]
    build = joinpath(root, "build")
    builds = isdir(build) ? filter(isdir, readdir(build; join=true)) : String[]
    [joinpath(root, "lib"); joinpath(build, "lib"); [joinpath(x, "lib") for x in builds]]
end

"The handle of a library, or why it is not one for this package."
function opened(file)
    handle = try Libdl.dlopen(file) catch why; return replace(sprint(showerror, why), "\n" => ": ") end
    version = Libdl.dlsym(handle, :fovea_version; throw_error=false)
    version === nothing && return "$file has no fovea_version"
    number = ccall(version, Int32, ())
    epoch(v) = v < 10000 ? v ÷ 100 : v ÷ 10000 * 100 # before 1.0 a minor version may break the ABI
    epoch(number) == epoch(FOVEA_VERSION) ? handle : "$file is version $number, this package is for $FOVEA_VERSION"
end

"The library's handle and file.  A file that the user names is the only one that is tried."
function find_library(; given=get(ENV, "FOVEA_LIBRARY", ""), chosen=preferred(), jll=packaged(),
                      root=ROOT, system=SONAME)
    tried = String[]
    function attempt(place, file)
        handle = opened(file)
        handle isa Ptr && return true, (handle, file)
        push!(tried, "$place: $handle")
        false, nothing
    end
    for (place, file) in (("FOVEA_LIBRARY", given), ("the preference `library`", chosen))
        if file === nothing || isempty(file)
            push!(tried, "$place: not set")
            continue
        end
        done, found = attempt(place, isfile(file) ? abspath(file) : file)
        return done ? found : throw(LibraryError("cannot open the library: $(tried[end])"))
    end
    jll === nothing && push!(tried, "Fovea_jll: not loaded")
    places = jll === nothing ? Tuple{String,String}[] : [("Fovea_jll", jll)]
    isempty(folders(root)) && push!(tried, "$root: not a checkout of fovea")
    for folder in folders(root)
        file = joinpath(folder, FILE)
        isfile(file) ? push!(places, ("this checkout", file)) : push!(tried, "$folder: no $FILE")
    end
    for (place, file) in [places; ("the system", system)]
        done, found = attempt(place, file)
        done && return found
    end
    throw(LibraryError(string("libfovea was not found.  Tried:\n  ", join(tried, "\n  "),
        "\nSet FOVEA_LIBRARY to the path of $FILE, or build it in the checkout:\n",
        "  cmake --preset release -DFOVEA_CUDA=OFF -DFOVEA_TESTS=OFF -DFOVEA_BENCH=OFF\n",
        "  cmake --build --preset release")))
end

"The address of a function, looked up once: pointers do not survive precompilation."
@inline symbol(slot, name) = slot[] == C_NULL ? resolve(slot, name) : slot[]
@noinline function resolve(slot, name)
    library[] == C_NULL && ((library[], library_file[]) = find_library())
    slot[] = Libdl.dlsym(library[], name)
end

"The library's version, `major * 10000 + minor * 100 + patch`."
version() = fovea_version()

"The file that the library was opened from."
library_path() = (version(); library_file[])

"A fact of the library's build, `Fovea.build(:operations)`; \"\" for an unknown number."
function build(key)
    text = fovea_build_get(enumerated(BUILD, "build: key", key))
    text == C_NULL ? "" : unsafe_string(text)
end

"How many devices `:host` or `:cuda` has here; 0 is not an error."
function device_count(backend)
    count = Ref{Int32}(0)
    check(fovea_device_count(backend_number("device_count", backend), count))
    Int(count[])
end

"`:host` or `:cuda`; `:cpu` and `:gpu` are the same two."
backend_number(op, x) = enumerated(BACKEND, "$op: backend", x === :cpu ? :host : x === :gpu ? :cuda : x)
