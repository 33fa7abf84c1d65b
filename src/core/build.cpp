// SPDX-License-Identifier: Apache-2.0
#include "fovea/core.h"

#define FOVEA_TEXT_(x) #x
#define FOVEA_TEXT(x) FOVEA_TEXT_(x)

extern "C" const char* fovea_build_get(fovea_build key) {
  switch (key) {
    case FOVEA_BUILD_VERSION:
      return FOVEA_TEXT(FOVEA_VERSION_MAJOR) "." FOVEA_TEXT(FOVEA_VERSION_MINOR) "." FOVEA_TEXT(
          FOVEA_VERSION_PATCH);
    case FOVEA_BUILD_GIT:
      return FOVEA_GIT;
    case FOVEA_BUILD_TOOLKIT:
      return FOVEA_TOOLKIT;
    case FOVEA_BUILD_ARCHITECTURES:
      return FOVEA_ARCHITECTURES;
    case FOVEA_BUILD_OPERATIONS: {
      static constexpr char operations[] =
#define FOVEA_OP(family, verb, first_size) "," #family "_" #verb
#include "ops.inc"
#undef FOVEA_OP
          ;
      return operations + 1;  // past the first comma
    }
    case FOVEA_BUILD_COMPILER:
#if defined(__clang__)
      return "clang " FOVEA_TEXT(__clang_major__) "." FOVEA_TEXT(__clang_minor__) "." FOVEA_TEXT(
          __clang_patchlevel__);
#else
      return "gcc " FOVEA_TEXT(__GNUC__) "." FOVEA_TEXT(__GNUC_MINOR__) "." FOVEA_TEXT(
          __GNUC_PATCHLEVEL__);
#endif
  }
  return nullptr;
}
