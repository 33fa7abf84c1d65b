// SPDX-License-Identifier: Apache-2.0
// Cases that start from the contract table: the table knows the tensors of an operation, their
// extents and dtypes, so a case says only what is its own.
//
//   TableCall  a call by the names of its fields and the letters of its extents
//   Table      cases as words, fill rules and an oracle; registers itself as Family does
#pragma once
#include <map>

#include "cases/all.h"
#include "contract_call.h"

namespace cases {

using Letters = std::map<std::string, int64_t>;

// Adds a field of the call with the shape and the dtype that the table gives it.  A dtype `as x` is
// that of x, which the call has; `dtype` is one of the others, -1: the table's first.  A paged call
// has the pools in place of rows.
size_t add_field(harness::Call& call, const std::string& name, const Letters& letters,
                 harness::Lay lay, int dtype = -1, bool paged = false);
bool has_field(const harness::Call& call, const std::string& name);

// Thrown by an oracle whose choice hangs on a rounding: the inputs are drawn again.
struct Close {};

// draw(seed), or of other seeds while it throws Close; `words` name the case that none settles.
harness::Call settled(const std::string& words, uint64_t seed,
                      const std::function<harness::Call(uint64_t)>& draw);

// A result of an oracle for one output.
struct Expected {
  std::string name;
  oracle::Out exact, rounded;
  bool bitwise = false;
};

// The name of a case, of its words and of what they are to show.
std::string name_of_words(const std::string& words, const std::string& note);

// Words of a covering array: every pair of words of any two axes is in one of them.
std::vector<std::string> covering(const std::vector<std::vector<std::string>>& axes, uint64_t seed);

// Cases that a function makes of their words.
class WordCases {
 public:
  // May throw Close.
  using Build = harness::Call (*)(const std::string& words, uint64_t seed);
  WordCases(const char* op, Build build) : op_(op), build_(build) {}
  // `small` ones are golden vectors.
  WordCases& add(const std::string& words, const std::string& note, bool small = false);
  // A covering array, each of whose cases has the words of `common` too.
  void sweep(const std::string& common, const std::vector<std::vector<std::string>>& axes,
             const std::string& note, uint64_t seed);
  std::vector<harness::Case> cases() const { return cases_; }

 private:
  const char* op_;
  Build build_;
  std::vector<harness::Case> cases_;
};

// A case of a Table, in words divided by spaces:
//   s=65       an extent or a number of the params; the table's small extents hold without it
//   x:bf16     a dtype
//   bias       an optional tensor that is given
//   odd        the lay of every tensor (harness::kLayNames)
class TableCall {
 public:
  TableCall(const char* op, const std::string& words, uint64_t seed);

  template <class P>
  const P& params() const {
    return *reinterpret_cast<const P*>(call.params.data());
  }
  bool has(const std::string& name) const { return given_.count(name) != 0; }

  // Adds the given inputs but `later` ones, not filled; then the given outputs; then what they must
  // be.
  void inputs(const std::vector<std::string>& later = {});
  void input(const std::string& field);
  // `field` is the first columns of `of`, in its memory.
  void view(const std::string& field, const std::string& of);
  void outputs();
  // The numbers of a method; those of the words stand.
  void apply(const std::string& recipe);
  void expect(const std::vector<Expected>& expected);

  harness::Call call;
  Letters letters;
  Letters named;  // of letters, what words gave: small extents and what follows are not in it
  harness::Lay lay = harness::Lay::contiguous;

 private:
  friend class Table;
  // Rows of a batch in use: query_len's own, by a fixed rule.
  int64_t rows_of(int64_t batch) const;

  const contract::Op& op_;
  std::map<std::string, int> dtypes_;
  std::map<std::string, bool> given_;
  const std::string words_;
  uint64_t seed_;
};

// The cases of one operation.  Inputs are normal numbers, a stream for each field; query_len cuts
// rows, which then do not count in tensors of (b, s, ..).  `fills` has a rule for each other
// integer, and for floats that are not to be normal: value(index, normal number).  What follows
// from other words, shape() and contents() tell.  An oracle may say what of its inputs does not
// count.
class Table {
 public:
  using Fill = std::function<double(const int64_t* index, double normal)>;
  using Oracle = std::function<std::vector<Expected>(TableCall&)>;
  // Letters that follow from words, before any tensor is there.
  using Shape = std::function<void(TableCall&)>;
  // The element of a field; `field` has no rule in fills.
  using Contents = std::function<double(const TableCall&, const std::string& field,
                                        const int64_t* index, double normal)>;

  Table(const char* op, Oracle oracle, std::map<std::string, Fill> fills = {});

  Table& shape(Shape rule) {
    shape_ = std::move(rule);
    return *this;
  }
  Table& contents(Contents rule) {
    contents_ = std::move(rule);
    return *this;
  }

  // `field` is a view of the first columns of `of`.
  Table& view(const char* field, const char* of) {
    views_[field] = of;
    return *this;
  }

  // The calls are those of a method by its name, experimental/recipe.h.
  Table& recipe(const char* name) {
    recipe_ = name;
    return *this;
  }

  // A covering array: every pair of words of any two axes is in a case.
  Table& sweep(const std::vector<std::vector<std::string>>& axes, uint64_t seed);
  // One case for each, which `note` ends in.  `small` ones are golden vectors.
  Table& each(const char* note, const std::vector<std::string>& words, bool small = false);
  Table& kernel(const char* note, const std::vector<std::string>& words, const char* cuda_kernel);

  std::vector<harness::Case> cases() const { return cases_; }

 private:
  void add(const std::string& words, const std::string& note, bool small, const char* kernel);

  const char* op_;
  Oracle oracle_;
  std::map<std::string, Fill> fills_;
  std::map<std::string, std::string> views_;
  Shape shape_;
  Contents contents_;
  std::string recipe_;
  std::vector<harness::Case> cases_;
};

}  // namespace cases
