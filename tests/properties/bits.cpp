// SPDX-License-Identifier: Apache-2.0
// What the bits of a sequence's results do not depend on: the table in fovea.h, row by row.  A
// batch is put together from the sequences of another one, and every output follows its sequence
// bit for bit.  (That a second run, another workspace and other threads change nothing:
// harness/check.h.)
#include "cases/attention_case.h"
#include "cases/cache_case.h"
#include "cases/conv_case.h"
#include "cases/kl_case.h"
#include "cases/merge_case.h"
#include "cases/quant_case.h"
#include "cases/rope_case.h"
#include "cases/trace_case.h"

namespace {

using namespace cases;
using harness::Bytes;
using harness::Context;
using harness::Field;

// A row of the table: the operation's calls with any number of sequences, and its noes.
struct Row {
  std::string name;
  std::function<Call(int64_t b)> build;
  bool place, host_batch, cuda_batch;
};

using Numbers = std::vector<int>;  // the sequence of the first batch that each one is

// Axis along which a field has one entry a sequence, or -1: where calls of two sizes differ.
int batch_axis(const Call& one, const Call& other, size_t field) {
  const fovea_tensor &x = one.fields[field].tensor, &y = other.fields[field].tensor;
  int found = -1;
  for (int i = 0; i < x.ndim; ++i)
    if (x.shape[i] != y.shape[i]) {
      EXPECT_EQ(found, -1) << one.fields[field].name << " grows along two axes";
      found = i;
    }
  return found;
}

int64_t byte_of(const Field& f, const int64_t* index) {
  int64_t element = 0;
  for (int i = 0; i < f.tensor.ndim; ++i) element += index[i] * f.tensor.stride[i];
  return f.start + element * oracle::bytes_of(f.tensor.dtype);
}

// visit(byte in `call`, byte in `first`, sequence in `call`) for all that a field of both has.
template <class Visit>
void each_pair(const Call& call, const Call& first, size_t field, int axis, const Numbers& numbers,
               Visit visit) {
  call.each(field, [&](const int64_t* index, int64_t byte) {
    int64_t at[FOVEA_MAX_DIMS] = {};
    std::copy_n(index, call.fields[field].tensor.ndim, at);
    const size_t sequence = axis < 0 ? 0 : static_cast<size_t>(index[axis]);
    if (axis >= 0) at[axis] = numbers[sequence];
    visit(byte, byte_of(first.fields[field], at), sequence);
  });
}

// Everything an output could leave alone starts as 0, everything else is an input.
void count_all(Call& call) {
  for (const harness::Role role : {harness::Role::out, harness::Role::in, harness::Role::inout})
    for (size_t i = 0; i < call.fields.size(); ++i) {
      const Field& f = call.fields[i];
      if (f.role != role) continue;
      harness::Storage& storage = call.storages[f.storage];
      call.each(i, [&](const int64_t*, int64_t byte) {
        const auto cover = role == harness::Role::out ? harness::kUnused : harness::kUsed;
        std::fill_n(storage.cover.begin() + byte, oracle::bytes_of(f.tensor.dtype), cover);
      });
    }
}

Bytes results(Context& ctx, const Call& call) {
  harness::Bound bound(ctx, call);
  bound.upload(call, false);
  EXPECT_EQ(bound.run(call), FOVEA_OK) << fovea_last_error();
  harness::must(fovea_context_synchronize(ctx), "synchronize");
  return bound.download();
}

class Batches {
 public:
  Batches(Context& ctx, const Row& row)
      : ctx_(ctx), row_(row), first_(row.build(kFirst)), other_(row.build(1)) {
    count_all(first_);
    results_ = results(ctx_, first_);
    kernel_ = fovea_context_last_kernel(ctx_);
  }

  // Outputs of a batch of these sequences against those of the first batch.  `fixed`: only of
  // sequences that are where they were.
  void expect(const Numbers& numbers, bool fixed) const {
    Call call = row_.build(static_cast<int64_t>(numbers.size()));
    ASSERT_EQ(call.fields.size(), first_.fields.size());
    for (size_t i = 0; i < call.fields.size(); ++i)
      if (call.fields[i].role != harness::Role::out) copy_input(call, i, numbers);
    count_all(call);
    const Bytes after = results(ctx_, call);
    for (size_t i = 0; i < call.fields.size(); ++i) {
      const int axis = batch_axis(first_, other_, i);
      if (call.fields[i].role == harness::Role::in || axis < 0) continue;
      EXPECT_EQ(differences(call, i, axis, numbers, fixed, after), 0)
          << call.fields[i].name << " of " << testing::PrintToString(numbers) << ", "
          << fovea_context_last_kernel(ctx_) << " after " << kernel_;
    }
  }

  // The test would see it if outputs were those of another sequence.
  void expect_different() const {
    bool different = false;
    const Numbers swapped = {1, 0, 2};
    for (size_t i = 0; i < first_.fields.size(); ++i) {
      const int axis = batch_axis(first_, other_, i);
      if (first_.fields[i].role == harness::Role::in || axis < 0) continue;
      different = different || differences(first_, i, axis, swapped, false, results_) > 0;
    }
    EXPECT_TRUE(different);
  }

 private:
  static constexpr int64_t kFirst = 3;

  void copy_input(Call& call, size_t field, const Numbers& numbers) const {
    const Field &to = call.fields[field], &from = first_.fields[field];
    each_pair(call, first_, field, batch_axis(first_, other_, field), numbers,
              [&](int64_t byte, int64_t source, size_t) {
                std::copy_n(first_.storages[from.storage].image.begin() + source,
                            oracle::bytes_of(to.tensor.dtype),
                            call.storages[to.storage].image.begin() + byte);
              });
  }

  int64_t differences(const Call& call, size_t field, int axis, const Numbers& numbers, bool fixed,
                      const Bytes& after) const {
    const Field &x = call.fields[field], &y = first_.fields[field];
    int64_t found = 0;
    each_pair(call, first_, field, axis, numbers, [&](int64_t byte, int64_t source, size_t at) {
      if (fixed && numbers[at] != static_cast<int>(at)) return;
      found += std::memcmp(after[x.storage].data() + byte, results_[y.storage].data() + source,
                           oracle::bytes_of(x.tensor.dtype)) != 0;
    });
    return found;
  }

  Context& ctx_;
  const Row& row_;
  Call first_, other_;
  Bytes results_;
  std::string kernel_;
};

void add_attention(std::vector<Row>& rows) {
  for (int dtype : {FOVEA_F32, FOVEA_BF16})
    for (int64_t s : {1, 130})
      for (int splits : {0, 3}) {
        AttentionCase c;
        c.dtype = dtype, c.s = s, c.t = 600, c.h = 2, c.g = 1, c.d = c.e = 64;
        c.span = Span::causal, c.where = Where::lengths, c.splits = splits;
        const auto build = [c](int64_t b) {
          AttentionCase of = c;
          of.b = b;
          return build_attention_forward(of, 1, 2);
        };
        rows.push_back({"attention_forward_" + std::string(dtype_name(dtype)) + "_s" +
                            std::to_string(s) + "_splits" + std::to_string(splits),
                        build, true, splits > 0, splits > 0});
      }
  for (int dtype : {FOVEA_F32, FOVEA_BF16})
    for (bool rich : {false, true}) {
      AttentionCase c;
      c.dtype = dtype, c.s = 130, c.t = 260, c.h = 2, c.g = 1, c.d = c.e = 64;
      c.span = Span::causal, c.where = Where::lengths, c.alibi = rich;
      if (rich) c.bias = Bias::full;
      const auto build = [c](int64_t b) {
        AttentionCase of = c;
        of.b = b;
        return build_attention_backward(of, 1, 2);
      };
      rows.push_back(
          {"attention_backward_" + std::string(dtype_name(dtype)) + (rich ? "_rich" : ""), build,
           true, false, false});
    }
}

void add_conv(std::vector<Row>& rows) {
  for (int dtype : {FOVEA_F32, FOVEA_BF16})
    for (bool backward : {false, true}) {
      ConvCase c;
      c.dtype = dtype, c.s = 130, c.t = 230, c.h = 2, c.g = 1, c.d = c.e = 64;
      c.kernel_rows = 6, c.kernel_columns = 11, c.causal = true, c.where = Where::lengths;
      const auto build = [c, backward](int64_t b) {
        ConvCase of = c;
        of.b = b;
        return backward ? build_conv_backward(of, 1, 2) : build_conv_forward(of, 1, 2);
      };
      rows.push_back({std::string("conv_attention_") + (backward ? "backward_" : "forward_") +
                          dtype_name(dtype),
                      build, backward, false, false});
    }
}

void add_kl(std::vector<Row>& rows) {
  for (int dtype : {FOVEA_F32, FOVEA_BF16})
    for (bool backward : {false, true}) {
      KlCase c;
      c.teacher = c.student = dtype, c.s = 130, c.t = 300, c.h = 2, c.g = 1, c.x = 2;
      c.d = c.f = 64, c.span = Span::causal, c.where = Where::lengths;
      if (!backward) c.outputs = 7;  // total is of all sequences
      const auto build = [c, backward](int64_t b) {
        KlCase of = c;
        of.b = b;
        return backward ? build_kl_backward(of, 2) : build_kl_forward(of, 2);
      };
      rows.push_back(
          {std::string("kl_") + (backward ? "backward_" : "forward_") + dtype_name(dtype), build,
           true, true, false});
    }
}

void add_quant(std::vector<Row>& rows) {
  for (int64_t block : {0, 64}) {
    QuantizeCase c;
    c.dtype = FOVEA_BF16, c.s = 130, c.h = 2, c.d = 64, c.block = block;
    c.hadamard = c.code_t = c.permuted = true;
    const auto build = [c](int64_t b) {
      QuantizeCase of = c;
      of.b = b;
      return build_quantize(of, 2);
    };
    rows.push_back({"quant_quantize_block" + std::to_string(block), build, true, true, true});
  }
  for (bool transposed : {false, true}) {
    QuantForwardCase c;
    c.s = 130, c.t = 300, c.h = 2, c.g = 1, c.d = c.e = 64, c.causal = true;
    c.transposed = c.permuted = transposed, c.where = Where::lengths;
    const auto build = [c](int64_t b) {
      QuantForwardCase of = c;
      of.b = b;
      return build_quant_forward(of, 2);
    };
    rows.push_back({std::string("quant_forward") + (transposed ? "_transposed" : ""), build, true,
                    true, true});
  }
}

void add_trace(std::vector<Row>& rows) {
  for (bool exact : {false, true}) {
    TraceCase c;
    c.dtype = FOVEA_BF16, c.s = 130, c.t = 500, c.h = 2, c.g = 1, c.d = c.e = 64;
    c.block_rows = c.block_keys = 64, c.keep = 4, c.causal = true, c.exact = exact;
    c.key_len = true, c.edges = EdgeList::none;
    const auto build = [c](int64_t b) {
      TraceCase of = c;
      of.b = b;
      return build_trace(of, 2);
    };
    rows.push_back(
        {std::string("trace_forward_") + (exact ? "exact" : "fast"), build, true, true, true});
  }
}

// merge, cache and rope, of which a call has no other shape than its own.
void add_small(std::vector<Row>& rows) {
  const auto add = [&](const char* name, std::function<Call(int64_t)> build) {
    rows.push_back({name, std::move(build), true, true, true});
  };
  MergeCase merge;
  merge.part_dtype = FOVEA_BF16, merge.n = 5, merge.u = merge.s = 33, merge.e = 64;
  for (bool backward : {false, true})
    add(backward ? "merge_backward" : "merge_forward", [merge, backward](int64_t b) {
      MergeCase of = merge;
      of.b = b;
      return backward ? build_merge_backward(of, 2) : build_merge_forward(of, 2);
    });
  CacheCase cache;
  cache.new_dtype = FOVEA_BF16, cache.cache_dtype = FOVEA_BF16;
  cache.norm = true, cache.rope = Rope::half;
  add("cache_append", [cache](int64_t b) {
    CacheCase of = cache;
    of.b = b;
    return build_cache_append(of, 2);
  });
  CacheCase get;
  get.cache_dtype = FOVEA_E4M3, get.scale = true;
  add("cache_get", [get](int64_t b) {
    CacheCase of = get;
    of.b = b;
    return build_cache_get(of, 2);
  });
  RopeCase rope;
  rope.dtype = FOVEA_BF16, rope.place = RopeCase::position;
  add("rope_forward", [rope](int64_t b) {
    RopeCase of = rope;
    of.b = b;
    return build_rope_forward(of, 2);
  });
}

std::vector<Row> table() {
  std::vector<Row> rows;
  add_attention(rows), add_conv(rows), add_kl(rows), add_quant(rows), add_trace(rows);
  add_small(rows);
  return rows;
}

class Bits : public testing::TestWithParam<std::tuple<fovea_backend, Row>> {};
INSTANTIATE_TEST_SUITE_P(bits, Bits,
                         testing::Combine(testing::ValuesIn(harness::backends()),
                                          testing::ValuesIn(table())),
                         [](const auto& at) {
                           return std::string(harness::name_of(std::get<0>(at.param))) + "_" +
                                  std::get<1>(at.param).name;
                         });

TEST_P(Bits, follow_their_sequence) {
  const auto& [backend, row] = GetParam();
  Context ctx(backend);
  const Batches batches(ctx, row);
  if (HasFailure()) return;
  batches.expect_different();
  // Neighbours: others, and one that is there three times.
  batches.expect({2, 1, 2}, !row.place);
  batches.expect({0, 0, 0}, !row.place);
  if (row.place) batches.expect({1, 2, 0}, false);
  if (!(backend == FOVEA_HOST ? row.host_batch : row.cuda_batch)) return;
  for (int i : {0, 1, 2}) batches.expect({i}, false);
  batches.expect({0, 1, 2, 0, 1, 2, 0}, false);
}

}  // namespace
