# SPDX-License-Identifier: Apache-2.0
# BinaryBuilder.jl's recipe of Fovea_jll: the host backend alone, no CUDA.  Not run by the tests,
# which have no BinaryBuilder: expect to mend it at first use.
#
#   FOVEA_REPOSITORY=<url> FOVEA_COMMIT=<40 hex digits> julia build_tarballs.jl --verbose --deploy=local
using BinaryBuilder, Pkg

name = "Fovea"
version = v"0.1.0" # of Fovea/Project.toml
sources = [GitSource(ENV["FOVEA_REPOSITORY"], ENV["FOVEA_COMMIT"]; unpack_target="source")]

script = raw"""
cd ${WORKSPACE}/srcdir/source/*/
cmake -S . -B build -G Ninja \
    -DCMAKE_INSTALL_PREFIX=${prefix} \
    -DCMAKE_TOOLCHAIN_FILE=${CMAKE_TARGET_TOOLCHAIN} \
    -DCMAKE_BUILD_TYPE=Release \
    -DFOVEA_CUDA=OFF -DFOVEA_STATIC=OFF -DFOVEA_INFO=OFF -DFOVEA_TESTS=OFF -DFOVEA_BENCH=OFF
cmake --build build --parallel ${nproc}
cmake --install build
install_license LICENSE
"""

# The inner loops choose their instructions when they run, so one build serves every x86-64.
platforms = [Platform("x86_64", "linux"; libc="glibc"), Platform("aarch64", "linux"; libc="glibc")]
platforms = expand_cxxstring_abis(platforms)

products = [LibraryProduct("libfovea", :libfovea)]
dependencies = [Dependency(PackageSpec(name="CompilerSupportLibraries_jll",
    uuid="e66e0078-7015-5450-92f7-15fbd957f2ae"))] # libstdc++

# The library is C++20.
build_tarballs(ARGS, name, version, sources, script, platforms, products, dependencies;
    julia_compat="1.6", preferred_gcc_version=v"11")
