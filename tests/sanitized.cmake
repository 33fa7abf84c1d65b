# SPDX-License-Identifier: Apache-2.0
# The host backend once more for each entry of FOVEA_SANITIZED, for the tests alone: of
# "address,undefined" the target fovea_address, <build>/sanitized/address/libfovea.so.
# The test programs are linked once more with it, from the same objects: what is watched is the
# library, and the tests and their oracles are compiled once and run at full speed.
set(FOVEA_SANITIZER_NAMES "")
if(FOVEA_SANITIZED)
  add_library(fovea_memmove OBJECT tests/harness/memmove.c)
endif()
foreach(_sanitizers IN LISTS FOVEA_SANITIZED)
  string(REGEX MATCH "^[a-z]+" _name "${_sanitizers}")
  list(APPEND FOVEA_SANITIZER_NAMES ${_name})
  add_library(fovea_objects_${_name} OBJECT ${FOVEA_HOST_SOURCES})
  target_include_directories(fovea_objects_${_name} PRIVATE include src)
  target_compile_definitions(fovea_objects_${_name} PRIVATE FOVEA_BUILDING FOVEA_WITH_CUDA=0)
  # At -O1, instrumented code takes two thirds of the time to compile.
  target_compile_options(fovea_objects_${_name} PRIVATE -Wno-missing-field-initializers
    -ffp-contract=off -fsanitize=${_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer
    -g1 -O1)
  # A check of an address is a call: the SIMD tables, half of the time, compile twice as fast.
  if(_name STREQUAL "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(fovea_objects_address PRIVATE --param asan-instrumentation-with-call-threshold=0)
  endif()
  add_library(fovea_${_name} SHARED $<TARGET_OBJECTS:fovea_objects_${_name}> $<TARGET_OBJECTS:fovea_memmove>)
  target_include_directories(fovea_${_name} INTERFACE include)
  target_link_libraries(fovea_${_name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  # The sanitizer's symbols come from the program.
  target_link_options(fovea_${_name} PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/lib/fovea.map
    PUBLIC -Wl,--wrap=memmove INTERFACE -fsanitize=${_sanitizers})
  set_target_properties(fovea_${_name} PROPERTIES OUTPUT_NAME fovea
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/sanitized/${_name})
endforeach()
