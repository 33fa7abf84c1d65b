# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where.  Nothing of it holds the prefix, so the prefix may be moved.
include(CMakePackageConfigHelpers)
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)

# The installed fovea.pc finds its prefix from its own place.  The one beside the built library
# names this checkout.
set(FOVEA_STATIC_LIBS "-lstdc++ -lm -lpthread -ldl -lrt")
if(FOVEA_CUDA)
  string(PREPEND FOVEA_STATIC_LIBS "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static ")
endif()
function(fovea_write_pc path prefix libdir includedir)
  set(FOVEA_PC_PREFIX "${prefix}")
  foreach(_dir libdir includedir)
    string(TOUPPER FOVEA_PC_${_dir} _name)
    if(IS_ABSOLUTE "${${_dir}}")
      set(${_name} "${${_dir}}")
    else()
      set(${_name} "\${prefix}/${${_dir}}")
    endif()
  endforeach()
  configure_file(lib/fovea.pc.in ${path} @ONLY)
endfunction()
file(RELATIVE_PATH _up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" _up "${_up}")
fovea_write_pc(${CMAKE_CURRENT_BINARY_DIR}/pkgconfig/fovea.pc \${pcfiledir}/${_up}
               ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_INCLUDEDIR})
fovea_write_pc(${FOVEA_LIBRARY_DIR}/fovea.pc ${CMAKE_CURRENT_SOURCE_DIR} ${FOVEA_LIBRARY_DIR} include)

configure_package_config_file(lib/foveaConfig.cmake.in foveaConfig.cmake INSTALL_DESTINATION ${_package})
write_basic_package_version_file(foveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# Two exports: the static library of a CUDA build needs a CUDA toolkit, the shared one does not.
if(FOVEA_SHARED)
  install(TARGETS fovea EXPORT foveaShared)
  install(EXPORT foveaShared NAMESPACE fovea:: DESTINATION ${_package})
endif()
if(FOVEA_STATIC)
  install(TARGETS fovea_static EXPORT foveaStatic)
  install(EXPORT foveaStatic NAMESPACE fovea:: DESTINATION ${_package})
endif()
install(DIRECTORY include/fovea DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/foveaConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/foveaConfigVersion.cmake
        DESTINATION ${_package})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pkgconfig/fovea.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
