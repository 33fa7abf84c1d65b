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
endif()

if(FOVEA_TESTS)
  add_test(NAME host_simd_symbols COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM}
    "-DOBJECTS=$<JOIN:$<FILTER:$<TARGET_OBJECTS:fovea_objects>,INCLUDE,host/simd_[a-z0-9]+\\.cpp>,,>"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/src/host/simd_symbols.cmake)
endif()
