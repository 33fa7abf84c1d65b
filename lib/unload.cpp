// SPDX-License-Identifier: Apache-2.0
// A shared library with libstdc++ inside gives back what that took when it was loaded: its reserve
// for exceptions without memory, 72 KB.  libstdc++ itself leaves it to the end of the process.
namespace __gnu_cxx {
void __freeres();
}

__attribute__((destructor)) static void unload() {
  __gnu_cxx::__freeres();
}
