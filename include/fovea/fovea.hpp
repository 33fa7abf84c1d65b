/* SPDX-License-Identifier: Apache-2.0 */
/** fovea for C++17 and later: the C ABI with owners, checked views and exceptions.
 *
 *    auto ctx = fovea::Context::host();                       // or cuda(0)
 *    const std::vector<float> q(2 * 64 * 8 * 128), kv(2 * 64 * 2 * 128);
 *    std::vector<float> o(q.size());
 *    auto p = fovea::params<fovea_attention_forward_params>();
 *    p.q = fovea::input(q, {2, 64, 8, 128});                  // (b, s, h, d)
 *    p.k = p.v = fovea::input(kv, {2, 64, 2, 128});           // (b, t, g, d)
 *    p.o = fovea::tensor(o, {2, 64, 8, 128});
 *    p.causal = 1;
 *    fovea::run(ctx, p);
 *
 *  `input` is for fields that are [in], and its memory may be const.  `tensor` is for every field,
 *  and of const memory it does not compile.
 *
 *  The params structs, their fields and every rule are fovea.h's.  This header adds no state and no
 *  dependency, and what it leaves out is the C function: a Context converts to fovea_context*.
 *
 *  Two ways to hear of a failure.
 *
 *    throwing      run, workspace_bytes, input, tensor,          fovea::Error, status() and what()
 *                  Buffer(ctx, n), Context::host
 *    not throwing  try_run, try_workspace_bytes                  fovea_status; fovea_last_error()
 *                  try_input, try_tensor, try_alloc, try_create  Result: status() and error()
 *
 *  With -fno-exceptions the first row does not exist and the second is the same.  Translation units
 *  of both kinds link.  C++20 fills a struct in one expression, and params() adds struct_size:
 *
 *    fovea::run(ctx, fovea::params(fovea_attention_forward_params{.q = q, .k = k, .v = v, .o = o,
 *                                                                 .causal = 1}));
 */
#ifndef FOVEA_FOVEA_HPP
#define FOVEA_FOVEA_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "fovea.h"

#if defined(__cpp_exceptions)
#include <stdexcept>
#endif
#if defined(__STDCPP_FLOAT16_T__) || defined(__STDCPP_BFLOAT16_T__)
#include <stdfloat>
#endif

/** Every stable operation (printed by tools/api.py); experimental/fovea.hpp has the others. */
#define FOVEA_CPP_OPERATIONS(X) \
  X(attention_forward) \
  X(attention_backward) \
  X(merge_forward) \
  X(merge_backward) \
  X(cache_append) \
  X(cache_copy) \
  X(cache_get) \
  X(rope_forward) \
  X(rope_table_get) \
  X(quant_quantize) \
  X(quant_dequantize) \
  X(quant_forward) \
  X(kl_forward) \
  X(kl_backward) \
  X(conv_attention_forward) \
  X(conv_attention_backward) \
  X(trace_forward)

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Wunsafe-buffer-usage"
#pragma clang diagnostic ignored "-Wweak-vtables"  // a header has no place for one vtable
#pragma clang diagnostic ignored "-Wpadded"
#endif

namespace fovea {

// ---- failures

#if defined(__cpp_exceptions)
/** A call that failed.  what() is the library's sentence: operation, field, got, wanted. */
class Error : public std::runtime_error {
 public:
  Error(fovea_status status, const char* sentence)
      : std::runtime_error(sentence), status_(status) {}
  fovea_status status() const noexcept { return status_; }

 private:
  fovea_status status_;
};

/** Throws unless the C function just called answered FOVEA_OK. */
inline void check(fovea_status status) {
  if (status != FOVEA_OK) throw Error(status, fovea_last_error());
}
#endif

/** A T, or the status and sentence of why there is none.  Test it before `*` and `->`, which then
 *  give an empty T. */
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) noexcept : value_(std::move(value)) {}
  Result(fovea_status status, const char* sentence) noexcept : status_(status) {
    std::snprintf(text_, sizeof text_, "%s", sentence);
  }
  explicit operator bool() const noexcept { return status_ == FOVEA_OK; }
  fovea_status status() const noexcept { return status_; }
  const char* error() const noexcept { return text_; } /**< "" when there is a T */
  T& operator*() noexcept { return value_; }
  T* operator->() noexcept { return &value_; }
#if defined(__cpp_exceptions)
  T value() && { /**< the T; throws Error where there is none */
    if (status_ != FOVEA_OK) throw Error(status_, text_);
    return std::move(value_);
  }
#endif

 private:
  T value_{};
  fovea_status status_ = FOVEA_OK;
  char text_[1020] = "";
};

// ---- contexts

/** Owns a fovea_context: moved, never copied.  Empty by default and after a move; the library
 *  refuses an empty one as NULL.  The C functions take a Context where they want fovea_context*, so
 *  fovea_context_synchronize(ctx) is the twin of ctx.synchronize() that does not throw. */
class Context {
 public:
  Context() noexcept = default;
  explicit Context(fovea_context* owned) noexcept : handle_(owned) {}
  static Result<Context> try_create(fovea_backend backend, std::int32_t device = 0) noexcept {
    fovea_context* made = nullptr;
    const fovea_status status = fovea_context_create(backend, device, &made);
    if (status != FOVEA_OK) return {status, fovea_last_error()};
    return Context(made);
  }
  operator fovea_context*() const noexcept { return handle_.get(); }
  fovea_context* release() noexcept { return handle_.release(); } /**< the caller destroys it */
  const char* last_kernel() const noexcept { return fovea_context_last_kernel(handle_.get()); }
  const char* last_plan() const noexcept { return fovea_context_last_plan(handle_.get()); }
  const char* last_reasons() const noexcept { return fovea_context_last_reasons(handle_.get()); }

#if defined(__cpp_exceptions)
  static Context host() { return try_create(FOVEA_HOST).value(); }
  static Context cuda(std::int32_t device = 0) { return try_create(FOVEA_CUDA, device).value(); }
  void set_threads(std::int32_t threads) { check(fovea_context_set_threads(*this, threads)); }
  void set_stream(void* stream) { check(fovea_context_set_stream(*this, stream)); }
  void set_workspace(void* data, std::size_t bytes) {
    check(fovea_context_set_workspace(*this, data, bytes));
  }
  void synchronize() { check(fovea_context_synchronize(*this)); }
  void wait(fovea_context* other) { check(fovea_context_wait(*this, other)); }
  std::int64_t get(fovea_property key) const {
    std::int64_t value = 0;
    check(fovea_context_get(*this, key, &value));
    return value;
  }
#endif

 private:
  struct Destroy {
    void operator()(fovea_context* ctx) const noexcept { fovea_context_destroy(ctx); }
  };
  std::unique_ptr<fovea_context, Destroy> handle_;
};

// ---- dtypes

/** Storage of the dtypes that C++17 has no type for: their bits, without arithmetic. */
struct f16 { std::uint16_t bits; };
struct bf16 { std::uint16_t bits; };
struct e4m3 { std::uint8_t bits; };
struct e5m2 { std::uint8_t bits; };

/** The fovea_dtype of T.  Specialise it for a type of your own:
 *    template <> struct fovea::dtype_of<__half> : fovea::dtype_is<FOVEA_F16> {};
 *  bool has none: a mask is bits, eight keys a byte. */
template <fovea_dtype value>
using dtype_is = std::integral_constant<fovea_dtype, value>;
template <class T>
struct dtype_of;
template <> struct dtype_of<float> : dtype_is<FOVEA_F32> {};
template <> struct dtype_of<f16> : dtype_is<FOVEA_F16> {};
template <> struct dtype_of<bf16> : dtype_is<FOVEA_BF16> {};
template <> struct dtype_of<e4m3> : dtype_is<FOVEA_E4M3> {};
template <> struct dtype_of<e5m2> : dtype_is<FOVEA_E5M2> {};
template <> struct dtype_of<signed char> : dtype_is<FOVEA_I8> {};
template <> struct dtype_of<unsigned char> : dtype_is<FOVEA_U8> {};
template <> struct dtype_of<int> : dtype_is<FOVEA_I32> {};
template <> struct dtype_of<long> : dtype_is<sizeof(long) == 8 ? FOVEA_I64 : FOVEA_I32> {};
template <> struct dtype_of<long long> : dtype_is<FOVEA_I64> {};
#if defined(__STDCPP_FLOAT16_T__)
template <> struct dtype_of<std::float16_t> : dtype_is<FOVEA_F16> {};
#endif
#if defined(__STDCPP_BFLOAT16_T__)
template <> struct dtype_of<std::bfloat16_t> : dtype_is<FOVEA_BF16> {};
#endif

// ---- views

/** Up to FOVEA_MAX_DIMS extents or strides: `{b, s, h, d}` of any integer types, or a container.
 *  No operation accepts a view made of more. */
class Extents {
 public:
  /** An integer of any type: a size_t in a braced list would otherwise be narrowing. */
  struct Number {
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>>
    constexpr Number(I number) noexcept : value(static_cast<std::int64_t>(number)) {}
    std::int64_t value;
  };
  Extents(std::initializer_list<Number> list) noexcept {
    for (const Number& number : list) push(number.value);
  }
  template <class C, class = std::enable_if_t<std::is_integral_v<
                         std::remove_reference_t<decltype(*std::data(std::declval<const C&>()))>>>>
  Extents(const C& list) noexcept {
    for (const auto number : list) push(static_cast<std::int64_t>(number));
  }
  /** Strides of rows that lie one after another, whatever the extents. */
  static Extents contiguous() noexcept {
    Extents made = {};
    made.count_ = -1;
    return made;
  }
  std::int32_t count() const noexcept { return static_cast<std::int32_t>(count_); }
  const std::int64_t* data() const noexcept { return values_; }
  std::int64_t operator[](std::int32_t i) const noexcept { return values_[i]; }

 private:
  void push(std::int64_t value) noexcept {
    if (count_ < FOVEA_MAX_DIMS) values_[count_] = value;
    if (count_ <= FOVEA_MAX_DIMS) count_++;
  }
  std::int64_t values_[FOVEA_MAX_DIMS] = {};
  std::int64_t count_ = 0;
};

/** A view of memory whose dtype is said; strides are in elements. */
inline fovea_tensor input(const void* data, fovea_dtype dtype, const Extents& shape,
                          const Extents& stride = Extents::contiguous()) noexcept {
  fovea_tensor view =
      fovea_contiguous(const_cast<void*>(data), dtype, shape.count(), shape.data());
  if (stride.count() < 0) return view;
  if (stride.count() != shape.count()) view.ndim = -1;  // no operation accepts it
  for (std::int32_t i = 0; i < FOVEA_MAX_DIMS; i++) view.stride[i] = stride[i];
  return view;
}
inline fovea_tensor tensor(void* data, fovea_dtype dtype, const Extents& shape,
                           const Extents& stride = Extents::contiguous()) noexcept {
  return input(data, dtype, shape, stride);
}

namespace detail {

/** What std::data of a container, span or array points to. */
template <class C>
using element_t = std::remove_pointer_t<decltype(std::data(std::declval<C&>()))>;

/** void for a pointer; nothing else has one. */
template <class P>
using pointer_t = std::enable_if_t<std::is_pointer_v<std::remove_reference_t<P>>>;

/** Elements from the first to the last that a view reaches; 0 of an empty one, -1 where a number is
 *  negative or the sum leaves 64 bits. */
inline std::int64_t reach(const Extents& shape, const std::int64_t* stride) noexcept {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  bool empty = false;
  for (std::int32_t i = 0; i < shape.count(); i++) {
    if (shape[i] < 0 || stride[i] < 0) return -1;
    empty = empty || shape[i] == 0;
    if (shape[i] > 1 && stride[i] > (most - 1 - last) / (shape[i] - 1)) return -1;
    if (shape[i] > 1) last += stride[i] * (shape[i] - 1);
  }
  return empty ? 0 : last + 1;
}

inline Result<fovea_tensor> refuse(const char* what, long long got, const char* wanted,
                                   long long number) noexcept {
  char text[160];
  std::snprintf(text, sizeof text, "tensor: %s is %lld, wanted %s%lld", what, got, wanted, number);
  return {FOVEA_INVALID_ARGUMENT, text};
}

/** `view` where it fits `size` elements: exactly without strides, at most with. */
inline Result<fovea_tensor> fit(const fovea_tensor& view, const Extents& shape, std::size_t size,
                                const Extents& stride) noexcept {
  const bool strided = stride.count() >= 0;
  if (shape.count() > FOVEA_MAX_DIMS)
    return refuse("the number of extents", shape.count(), "at most ", FOVEA_MAX_DIMS);
  if (strided && stride.count() != shape.count())
    return refuse("the number of strides", stride.count(), "as many as extents, ", shape.count());
  for (std::int32_t i = 0; i < shape.count(); i++) {
    char what[] = "shape[0]", steps[] = "stride[0]";
    what[6] = steps[7] = static_cast<char>('0' + i);
    if (shape[i] < 0) return refuse(what, shape[i], "at least ", 0);
    if (strided && stride[i] < 0) return refuse(steps, stride[i], "at least ", 0);
  }
  const std::int64_t need = reach(shape, view.stride);
  const long long have = static_cast<long long>(size);
  if (need < 0) return {FOVEA_INVALID_ARGUMENT, "tensor: the extents span more than 64 bits count"};
  const char* elements = "the number of elements";
  if (!strided && need != have) return refuse(elements, have, "as shape says ", need);
  if (need > have) return refuse(elements, have, "as strides reach at least ", need);
  return view;
}

/** A temporary owner would leave the view without memory; a temporary span is fine. */
template <class C>
constexpr void borrowed() noexcept {
  static_assert(std::is_lvalue_reference_v<C> || std::is_trivially_copyable_v<C>,
                "fovea: a view of a temporary container: its memory would be gone");
}

/** A fovea_tensor does not say whether its memory is const, so `tensor` takes none that is. */
template <class T>
constexpr void writable() noexcept {
  static_assert(!std::is_const_v<T>,
                "fovea::tensor of const memory: fovea::input views what a call only reads");
}

}  // namespace detail

/** A view of what a pointer points to.  How much memory is there is not known, so not checked. */
template <class P, class T = std::remove_pointer_t<std::remove_reference_t<P>>,
          class = detail::pointer_t<P>>
fovea_tensor input(P&& data, const Extents& shape,
                   const Extents& stride = Extents::contiguous()) noexcept {
  return input(data, dtype_of<std::remove_cv_t<T>>::value, shape, stride);
}
template <class P, class T = std::remove_pointer_t<std::remove_reference_t<P>>,
          class = detail::pointer_t<P>>
fovea_tensor tensor(P&& data, const Extents& shape,
                    const Extents& stride = Extents::contiguous()) noexcept {
  detail::writable<T>();
  return input(data, shape, stride);
}

/** A view of a container, std::span or array: anything with std::data and std::size.  Without
 *  strides shape must hold every element; pass `x.data()` or a subspan to view a part. */
template <class C, class T = detail::element_t<C>>
Result<fovea_tensor> try_input(C&& data, const Extents& shape,
                               const Extents& stride = Extents::contiguous()) noexcept {
  detail::borrowed<C>();
  return detail::fit(input(std::data(data), shape, stride), shape, std::size(data), stride);
}
template <class C, class T = detail::element_t<C>>
Result<fovea_tensor> try_tensor(C&& data, const Extents& shape,
                                const Extents& stride = Extents::contiguous()) noexcept {
  detail::writable<T>();
  return try_input(std::forward<C>(data), shape, stride);
}
#if defined(__cpp_exceptions)
template <class C, class T = detail::element_t<C>>
fovea_tensor input(C&& data, const Extents& shape,
                   const Extents& stride = Extents::contiguous()) {
  return try_input(std::forward<C>(data), shape, stride).value();
}
template <class C, class T = detail::element_t<C>>
fovea_tensor tensor(C&& data, const Extents& shape,
                    const Extents& stride = Extents::contiguous()) {
  return try_tensor(std::forward<C>(data), shape, stride).value();
}
#endif

// ---- memory

/** Owns `size` elements of the context's memory, by fovea_alloc and fovea_free: moved, never
 *  copied, not initialised.  The context outlives it.  On CUDA the host does not read data(). */
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>, "fovea::Buffer holds plain data");

 public:
  Buffer() noexcept = default;
  static Result<Buffer> try_alloc(fovea_context* ctx, std::size_t size,
                                  fovea_memory memory = FOVEA_MEMORY_DEVICE) noexcept {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    Buffer made;
    void* data = nullptr;
    const std::size_t bytes = size > most / sizeof(T) ? most : size * sizeof(T);
    const fovea_status status = fovea_alloc(ctx, memory, bytes, &data);
    if (status != FOVEA_OK) return {status, fovea_last_error()};
    made.ctx_ = ctx, made.data_ = static_cast<T*>(data), made.size_ = size;
    return Result<Buffer>(std::move(made));
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_) fovea_free(ctx_, data_);
  }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  void swap(Buffer& other) noexcept {
    std::swap(ctx_, other.ctx_), std::swap(data_, other.data_), std::swap(size_, other.size_);
  }

#if defined(__cpp_exceptions)
  Buffer(fovea_context* ctx, std::size_t size, fovea_memory memory = FOVEA_MEMORY_DEVICE)
      : Buffer(try_alloc(ctx, size, memory).value()) {}
  /** Allocates and copies a container. */
  template <class C, class = std::enable_if_t<std::is_same_v<
                         std::remove_const_t<detail::element_t<const C>>, T>>>
  Buffer(fovea_context* ctx, const C& from) : Buffer(ctx, std::size(from)) {
    copy_from(from);
  }
  /** Copies as many elements as the buffer has, in stream order: fovea_copy. */
  template <class C>
  void copy_from(const C& from) {
    same_size(std::data(from), std::size(from));
    check(fovea_copy(ctx_, data_, std::data(from), bytes()));
  }
  /** Copies all elements, and waits until they are there. */
  template <class C>
  void copy_to(C&& to) const {
    same_size(std::data(to), std::size(to));
    check(fovea_copy(ctx_, std::data(to), data_, bytes()));
    check(fovea_context_synchronize(ctx_));
  }
#endif

 private:
#if defined(__cpp_exceptions)
  void same_size(const T*, std::size_t size) const {
    char text[96];
    std::snprintf(text, sizeof text, "Buffer: the number of elements is %zu, wanted %zu", size,
                  size_);
    if (size != size_) throw Error(FOVEA_INVALID_ARGUMENT, text);
  }
#endif
  fovea_context* ctx_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// ---- operations

/** The operation of a params struct: its name, and its two C functions. */
template <class Params>
struct Operation;
#define FOVEA_CPP_OPERATION(op)                                                              \
  template <>                                                                                \
  struct Operation<fovea_##op##_params> {                                                    \
    static constexpr const char* name() noexcept { return #op; }                             \
    static fovea_status run(fovea_context* ctx, const fovea_##op##_params* p) noexcept {     \
      return fovea_##op(ctx, p);                                                             \
    }                                                                                        \
    static fovea_status workspace(fovea_context* ctx, const fovea_##op##_params* p,          \
                                  std::size_t* bytes) noexcept {                             \
      return fovea_##op##_workspace(ctx, p, bytes);                                          \
    }                                                                                        \
  };
FOVEA_CPP_OPERATIONS(FOVEA_CPP_OPERATION)

/** A params struct with struct_size set; all else is zero, or as given. */
template <class Params>
constexpr Params params(Params given = Params{}) noexcept {
  given.struct_size = sizeof given;
  return given;
}

/** The operation that `p` belongs to; on CUDA it is enqueued. */
template <class Params>
[[nodiscard]] fovea_status try_run(fovea_context* ctx, const Params& p) noexcept {
  return Operation<Params>::run(ctx, &p);
}

/** Whether the call is valid and supported here, and how many bytes of workspace it takes. */
template <class Params>
[[nodiscard]] fovea_status try_workspace_bytes(fovea_context* ctx, const Params& p,
                                               std::size_t& bytes) noexcept {
  return Operation<Params>::workspace(ctx, &p, &bytes);
}

#if defined(__cpp_exceptions)
template <class Params>
void run(fovea_context* ctx, const Params& p) {
  check(try_run(ctx, p));
}
template <class Params>
std::size_t workspace_bytes(fovea_context* ctx, const Params& p) {
  std::size_t bytes = 0;
  check(try_workspace_bytes(ctx, p, bytes));
  return bytes;
}
#endif

}  // namespace fovea

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

#endif
