# SPDX-License-Identifier: Apache-2.0
# fovea_portable: the shared library for wheels, which run on systems older than the one that links.
# It has the objects of fovea.  libstdc++ is inside.  libgcc_s stays outside: glibc brings it along,
# and its static form asks for glibc 2.35 (_dl_find_object).
#
# The linker binds a symbol of glibc to its newest version.  These symbols have an older one, which
# every later glibc keeps; --wrap sends their callers there, those in libstdc++.a and cudart too.
#
#   newest   symbols                                     what changed
#   2.27     expf exp2f logf log2f powf                  no wrapper sets errno any more
#   2.29     exp log pow                                 the same
#   2.32     __libc_single_threaded                      new, a hint: a zero of our own says "no"
#   2.32     pthread_sigmask                             moved from libpthread to libc
#   2.34     pthread_*, sem_*, dl*, shm_*                moved to libc
#
# GLIBC_2.16 (aligned_alloc) and with CUDA 2.17 (clock_gettime) remain: wheels are manylinux_2_17.
set(FOVEA_OLD_MATH expf exp2f logf log2f powf exp log pow)
set(FOVEA_OLD_THREADS
  pthread_attr_setstacksize pthread_create pthread_detach pthread_getspecific pthread_join
  pthread_key_create pthread_key_delete pthread_kill pthread_once pthread_setspecific
  pthread_sigmask pthread_condattr_setpshared pthread_mutex_trylock pthread_mutexattr_destroy
  pthread_mutexattr_init pthread_mutexattr_setpshared pthread_mutexattr_settype
  pthread_rwlock_destroy pthread_rwlock_init pthread_rwlock_rdlock pthread_rwlock_timedrdlock
  pthread_rwlock_timedwrlock pthread_rwlock_tryrdlock pthread_rwlock_trywrlock
  pthread_rwlock_unlock pthread_rwlock_wrlock pthread_rwlockattr_destroy pthread_rwlockattr_init
  pthread_rwlockattr_setpshared pthread_spin_destroy pthread_spin_init pthread_spin_lock
  pthread_spin_trylock pthread_spin_unlock sem_destroy sem_init sem_post sem_timedwait sem_trywait
  sem_wait)
set(FOVEA_OLD_OTHERS dlclose dlerror dlmopen@GLIBC_2.3.4 dlopen dlsym dlvsym shm_open shm_unlink)

# Functions that jump to the old version: that of the first glibc for x86-64, unless the name says
# another.  A section each: what nobody calls is dropped, with its reference.
function(fovea_write_old_glibc path)
  set(_text "/* Written by lib/portable.cmake. */\nchar __wrap___libc_single_threaded = 0;\n")
  foreach(_symbol IN LISTS ARGN)
    if(NOT _symbol MATCHES "@")
      string(APPEND _symbol "@GLIBC_2.2.5")
    endif()
    string(REGEX REPLACE "@.*" "" _name ${_symbol})
    string(APPEND _text "__asm__(\".symver fovea_old_${_name},${_symbol}\\n\"\n"
      "        \".pushsection .text.__wrap_${_name},\\\"ax\\\",@progbits\\n\"\n"
      "        \".globl __wrap_${_name}\\n.hidden __wrap_${_name}\\n\"\n"
      "        \".type __wrap_${_name},@function\\n\"\n"
      "        \"__wrap_${_name}: jmp fovea_old_${_name}@PLT\\n\"\n"
      "        \".size __wrap_${_name},.-__wrap_${_name}\\n.popsection\");\n")
  endforeach()
  file(CONFIGURE OUTPUT ${path} CONTENT "${_text}" @ONLY)
endfunction()

add_library(fovea_portable SHARED EXCLUDE_FROM_ALL ${FOVEA_OBJECTS} lib/unload.cpp)
set_target_properties(fovea_portable PROPERTIES OUTPUT_NAME fovea LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/portable
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/lib/fovea.map)
target_link_libraries(fovea_portable PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(FOVEA_CUDA)
  target_link_libraries(fovea_portable PRIVATE CUDA::cudart_static)
endif()
# Vtables name __cxa_pure_virtual weakly, and a weak symbol takes nothing out of libstdc++.a.
target_link_options(fovea_portable PRIVATE ${FOVEA_LINK_OPTIONS} -static-libstdc++ -Wl,-s
  -Wl,--undefined=__cxa_pure_virtual)

# Threads and dlopen were libraries of their own before glibc 2.34; stubs of them remain.
set(_stubs)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  foreach(_stub libpthread.so.0 libdl.so.2 librt.so.1)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${_stub}
                    OUTPUT_VARIABLE _path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(IS_ABSOLUTE "${_path}")
      list(APPEND _stubs ${_path})
    endif()
  endforeach()
endif()
list(LENGTH _stubs _count)
if(_count EQUAL 3)
  set(_old ${FOVEA_OLD_MATH} ${FOVEA_OLD_THREADS} ${FOVEA_OLD_OTHERS})
  fovea_write_old_glibc(${CMAKE_CURRENT_BINARY_DIR}/old_glibc.c ${_old})
  target_sources(fovea_portable PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/old_glibc.c)
  list(TRANSFORM _old REPLACE "@.*" "")
  list(TRANSFORM _old PREPEND "-Wl,--wrap=")
  target_link_options(fovea_portable PRIVATE ${_old} -Wl,--wrap=__libc_single_threaded)
  target_link_libraries(fovea_portable PRIVATE -Wl,--push-state,--no-as-needed ${_stubs} -Wl,--pop-state)
endif()
