# SPDX-License-Identifier: Apache-2.0
# Fails if an object in OBJECTS (comma separated) defines a weak or unique symbol.
string(REPLACE "," ";" _objects "${OBJECTS}")
list(LENGTH _objects _count)
if(_count EQUAL 0)
  message(FATAL_ERROR "no objects were given")
endif()
foreach(_object ${_objects})
  execute_process(COMMAND ${NM} -C ${_object} OUTPUT_VARIABLE _symbols COMMAND_ERROR_IS_FATAL ANY)
  if(_symbols MATCHES "[^\n]* [WwVvu] [^\n]*")
    message(FATAL_ERROR "${_object} has a symbol the linker may take for all: ${CMAKE_MATCH_0}")
  endif()
endforeach()
message(STATUS "${_count} objects define strong symbols only")
