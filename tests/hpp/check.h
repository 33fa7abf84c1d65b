// SPDX-License-Identifier: Apache-2.0
// A check that both units of the program can make, with exceptions and without.
#pragma once
#include <cstdio>
#include <cstring>

inline int failures = 0;

inline void expect(bool holds, int line, const char* what) {
  if (holds) return;
  failures++;
  std::printf("hpp: line %d: %s\n", line, what);
}
#define EXPECT(condition) expect((condition), __LINE__, #condition)

inline void expect_text(const char* got, const char* wanted, int line) {
  if (std::strstr(got, wanted)) return;
  failures++;
  std::printf("hpp: line %d: got '%s', wanted '%s'\n", line, got, wanted);
}
#define EXPECT_TEXT(got, wanted) expect_text((got), (wanted), __LINE__)

// In plain.cpp, which is compiled without exceptions and without run-time type information.
void check_plain();
