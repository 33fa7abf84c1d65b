// SPDX-License-Identifier: Apache-2.0
// Methods by name (experimental/recipe.h) from recipes.inc, which tools/emit_recipes.py writes.
#include "fovea/experimental/recipe.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "core/params.h"
#include "core/text.h"

namespace fovea {
namespace {

enum class Kind { tensor, i64, f32, i32 };

// Offsets are those in the operation's params and in its backward's; 0: it has no such field.
struct Number {
  Kind kind;
  double value;
  uint32_t at, at_back;
};
struct Need {
  Kind kind;
  const char *field, *wanted;
  uint32_t at, at_back;
};
struct Recipe {
  fovea_x_recipe told;
  size_t bytes, bytes_back;  // that a caller's params have at least
  int number, numbers, need, needs;
};

#include "core/recipes.inc"

constexpr int kCount = static_cast<int>(std::size(kRecipes));

constexpr int kLongest = 63;  // letters of a name that are looked at

// Steps from one name to the other: a letter more, less or another.  Only letters and digits count.
size_t distance(const char* a, const char* b) {
  int row[kLongest + 1], columns = 0;
  char other[kLongest];
  for (; *b && columns < kLongest; ++b)
    if (std::isalnum(static_cast<unsigned char>(*b))) other[columns++] = *b;
  for (int j = 0; j <= columns; ++j) row[j] = j;
  int rows = 0;
  for (; *a && rows < kLongest; ++a) {
    const auto letter = static_cast<unsigned char>(*a);
    if (!std::isalnum(letter)) continue;
    int before = row[0]++;
    ++rows;
    for (int j = 1; j <= columns; ++j) {
      const int changed = before + (std::tolower(letter) != other[j - 1]);
      before = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return static_cast<size_t>(row[columns]);
}

const Recipe& find(const char* name) {
  if (!name) refuse("recipe: name is NULL, wanted a name such as %s", kRecipes[0].told.name);
  size_t nearest = SIZE_MAX;
  for (const Recipe& r : kRecipes) {
    if (!std::strcmp(r.told.name, name)) return r;
    nearest = std::min(nearest, distance(name, r.told.name));
  }
  const bool near = nearest <= std::min<size_t>(3, 1 + std::strlen(name) / 3);
  TextOf<800> names;
  for (const Recipe& r : kRecipes) {
    if (near && distance(name, r.told.name) > nearest) continue;
    if (!names.empty()) names += ", ";
    names += r.told.name;
  }
  refuse("recipe: there is no '%.63s', wanted %s%s", name, near ? "" : "one of ", names.c_str());
}

void tell(const Recipe& r, fovea_x_recipe* to) {
  if (!to) refuse("recipe: recipe is NULL");
  const size_t size = to->struct_size;
  if (size < sizeof *to || size > kParamsMax)
    refuse("recipe: struct_size is %zu, wanted sizeof(fovea_x_recipe) (%zu)", size, sizeof *to);
  std::memset(static_cast<void*>(to), 0, size);
  *to = r.told;
  to->struct_size = size;
}

static_assert(offsetof(fovea_tensor, data) == 0 && sizeof(void*) == sizeof(int64_t));

template <class T>
void write(unsigned char* to, double value) {
  const T x = static_cast<T>(value);
  std::memcpy(to, &x, sizeof x);
}

void apply(const Recipe& r, bool back, unsigned char* params) {
  for (int i = r.need; i < r.need + r.needs; ++i) {
    const Need& need = kNeeds[i];
    const uint32_t at = back ? need.at_back : need.at;
    if (!at) continue;
    int64_t given = 0;  // an address, or a number
    std::memcpy(&given, params + at, need.kind == Kind::i32 ? sizeof(int32_t) : sizeof given);
    if (!given)
      refuse("recipe %s: %s is %s, wanted %s", r.told.name, need.field,
             need.kind == Kind::tensor ? "absent" : "0", need.wanted);
  }
  for (int i = r.number; i < r.number + r.numbers; ++i) {
    const Number& number = kNumbers[i];
    const uint32_t at = back ? number.at_back : number.at;
    if (!at) continue;
    if (number.kind == Kind::i64) write<int64_t>(params + at, number.value);
    if (number.kind == Kind::f32) write<float>(params + at, number.value);
    if (number.kind == Kind::i32) write<int32_t>(params + at, number.value);
  }
}

}  // namespace
}  // namespace fovea

extern "C" int64_t fovea_x_recipe_count(void) {
  return fovea::kCount;
}

extern "C" fovea_status fovea_x_recipe_at(int64_t index, fovea_x_recipe* recipe) {
  return fovea::guarded("recipe", [&] {
    if (index < 0 || index >= fovea::kCount)
      fovea::refuse("recipe: index is %lld, wanted 0 .. %d", fovea::lld(index), fovea::kCount - 1);
    fovea::tell(fovea::kRecipes[index], recipe);
  });
}

extern "C" fovea_status fovea_x_recipe_get(const char* name, fovea_x_recipe* recipe) {
  return fovea::guarded("recipe", [&] { fovea::tell(fovea::find(name), recipe); });
}

extern "C" fovea_status fovea_x_recipe_apply(const char* name, const char* operation,
                                             void* params) {
  return fovea::guarded("recipe", [&] {
    const fovea::Recipe& r = fovea::find(name);
    const bool back = operation && *operation && !std::strcmp(operation, r.told.backward);
    if (!operation || (!back && std::strcmp(operation, r.told.operation) != 0))
      fovea::refuse("recipe %s: operation is %.63s, wanted %s%s%s", name,
                    operation ? operation : "NULL", r.told.operation,
                    *r.told.backward ? " or " : "", r.told.backward);
    if (!params) fovea::refuse("recipe %s: params is NULL", name);
    size_t size = 0;
    std::memcpy(&size, params, sizeof size);
    const size_t wanted = back ? r.bytes_back : r.bytes;
    if (size < wanted || size > fovea::kParamsMax)
      fovea::refuse("recipe %s: struct_size is %zu, wanted sizeof(fovea_%s_params), at least %zu",
                    name, size, operation, wanted);
    fovea::apply(r, back, static_cast<unsigned char*>(params));
  });
}
