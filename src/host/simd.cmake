# SPDX-License-Identifier: Apache-2.0
# One vector source, three instruction sets.  What simd.inc needs is in the file itself: a weak
# symbol (an inline function of some header) compiled for AVX-512 could be the copy that the linker
# keeps for all, so the test looks for them.

set(FOVEA_SIMD_WIDEST 16 CACHE STRING "Widest vectors the library may use, in floats: 4, 8 or 16")
set_source_files_properties(src/host/simd.cpp PROPERTIES
  COMPILE_DEFINITIONS FOVEA_SIMD_WIDEST=${FOVEA_SIMD_WIDEST})
set_source_files_properties(src/host/simd_base.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-ffp-contract=fast;-Wno-psabi")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/host/simd_avx2.cpp PROPERTIES
    COMPILE_OPTIONS "-O3;-ffp-contract=fast;-Wno-psabi;-mavx2;-mfma;-mf16c")
  set_source_files_properties(src/host/simd_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "-O3;-ffp-contract=fast;-Wno-psabi;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
  # Tile registers (AMX), which Linux grants: not with narrower vectors alone.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -mavx512bf16)
  check_cxx_source_compiles("#include <immintrin.h>
    int main(int n, char**) {
      __asm__ volatile(\"tdpbf16ps %%tmm2, %%tmm1, %%tmm0\" ::);
      __m512 x = _mm512_set1_ps(static_cast<float>(n));
      return static_cast<int>(sizeof(_mm512_cvtne2ps_pbh(x, x)));
    }" FOVEA_COMPILES_AMX)
  unset(CMAKE_REQUIRED_FLAGS)
  option(FOVEA_AMX "bf16 products in AMX's tile registers, where CPU and system have them" ON)
  if(FOVEA_AMX AND FOVEA_COMPILES_AMX AND FOVEA_SIMD_WIDEST GREATER_EQUAL 16)
    set_source_files_properties(src/host/tiles.cpp src/host/tiles_amx.cpp PROPERTIES
      COMPILE_DEFINITIONS FOVEA_AMX)
    set_source_files_properties(src/host/tiles_amx.cpp PROPERTIES
      COMPILE_OPTIONS "-O3;-fno-exceptions;-Wno-psabi;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mprefer-vector-width=512")
  endif()
endif()

# Passes over elements outside the tables: -O2 makes vectors of few loops.
set_source_files_properties(src/host/rows.cpp src/host/recur_chunk.cpp
  src/host/recur_chunk_backward.cpp src/ops/quant/quantize_host.cpp
  src/ops/quant/forward_host.cpp PROPERTIES COMPILE_OPTIONS -O3)

if(FOVEA_TESTS)
  add_test(NAME host_simd_symbols COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM}
    "-DOBJECTS=$<JOIN:$<FILTER:$<TARGET_OBJECTS:fovea_objects>,INCLUDE,host/(simd|tiles)_[a-z0-9]+\\.cpp>,,>"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/src/host/simd_symbols.cmake)
endif()
