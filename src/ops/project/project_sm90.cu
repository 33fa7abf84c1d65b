// SPDX-License-Identifier: Apache-2.0
// Which products of x_project the Hopper kernel takes, their tensor maps, and the tile of each.
#include <algorithm>
#include <climits>
#include <vector>

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "ops/project/product.cuh"
#include "ops/project/project.cuh"

namespace fovea {
namespace cuda {
namespace {

// Every row of product.inc in this build.
const std::vector<ProductInstance90>& instances() {
  static const std::vector<ProductInstance90> rows = {
#define FOVEA_INSTANCE(dtype, rows, columns) project_product_sm90_instance<dtype, rows, columns>(),
#include "instances/project_product_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// Fewer rows leave most of a tile empty, where a tile cannot have those of the next batch.
constexpr int64_t kLeastRows = 64;

// Rows of a product as batches of `rows` rows each, of which a tile has those of one.
struct Batches {
  int64_t batches = 1, rows;

  // One batch where the rows of all lie one stride apart.
  static bool even(const ProjectAxis& x, int64_t count) {
    return x.first_row + count <= x.s || x.s == 1 || x.stride[0] == x.s * x.stride[1];
  }
  Batches(const ProjectAxis& x, const ProjectAxis& y, int64_t count) : rows(count) {
    if (even(x, count) && even(y, count)) return;
    rows = std::min(x.s, y.s), batches = count / rows;
  }
  Text refuse(const ProjectAxis& x, const ProjectAxis& y, int64_t count) const {
    if (batches == 1) return "";
    if (x.first_row || y.first_row || count % rows)
      return "a part of the rows of batches that lie unevenly, wanted all of them";
    if (rows < kLeastRows)
      return reason("s", rows,
                    "at least " + Text::number(kLeastRows) + " where rows of batches lie unevenly");
    return "";
  }
  int64_t stride(const ProjectAxis& x) const {
    return x.s == 1 && batches == 1 ? x.stride[0] : x.stride[1];
  }
  int64_t batch_stride(const ProjectAxis& x) const {
    return x.s == INT64_MAX ? rows * x.stride[1] : x.stride[0];
  }
  // The element of the first row.
  static int64_t origin(const ProjectAxis& x) {
    return x.first_row / x.s * x.stride[0] + x.first_row % x.s * x.stride[1];
  }
};

// A product that the kernel takes, but for the tile.
struct Product90 {
  Turned turned = Turned::neither;
  MapOf a{}, b{}, c{};  // but for the boxes of a and b
  ProductWork90 work{};
  int64_t z = 0, rows = 0, columns = 0, tile_batches = 1;  // of C: rows of a batch
};

// A tensor of rows as an operand; `axis` has its rows, `heads` its heads.
void operand(MapOf& of, int64_t& share, const ProjectMatrix& x, const ProjectAxis& axis,
             const ProjectAxis& heads, const Batches& batches, int64_t z, int64_t columns) {
  auto* const data = static_cast<uint16_t*>(x.data) + Batches::origin(axis);
  const int64_t step = x.row.width > 1 ? x.row.stride[3] : x.column.stride[3];
  of.tensor = {data, {batches.batch_stride(axis), batches.stride(axis), heads.stride[2], step}};
  of.dtype = x.dtype, of.batch = batches.batches, of.row = batches.rows, of.column = columns;
  share = heads.share, of.head = ceil_div(z * heads.heads, share);
}

// Where rows of C lie, and whether TMA or stores of two f32 reach them all.
Text place(const ProjectProduct& p, const char* name, const Batches& batches, Product90& to) {
  const bool terms = to.turned == Turned::a;
  ProductWork90& w = to.work;
  if (p.parts > 1) return "";  // their sums are contiguous
  w.c_head = terms ? p.c.row.stride[2] : p.c.column.stride[2];
  w.c_row = terms ? p.c.row.stride[3] : batches.stride(p.c.row);
  w.c_batch = terms ? 0 : batches.batch_stride(p.c.row);
  const int64_t first = terms ? 0 : Batches::origin(p.c.row);
  void* const data = static_cast<char*>(p.c.data) + first * dtype_bytes(p.c.dtype);
  if (p.c.dtype != FOVEA_F32) {
    to.c = {{data, {w.c_batch, w.c_row, w.c_head, p.c.column.stride[3]}},
            p.c.dtype,
            to.tile_batches,
            to.rows,
            p.z,
            p.n,
            kProductRows};
    const char* why = map_refuses(to.c);
    return *why ? Text(name) + " has " + why : Text();
  }
  w.sums = static_cast<float*>(data);
  const int64_t extent[3] = {p.z, to.rows, to.tile_batches};
  const int64_t stride[3] = {w.c_head, w.c_row, w.c_batch};
  bool fits = p.c.column.stride[3] == 1 && reinterpret_cast<uintptr_t>(data) % 8 == 0;
  for (int i = 0; i < 3; ++i) fits = fits && (extent[i] <= 1 || stride[i] % 2 == 0);
  return fits ? Text() : Text(name) + " has rows that are not contiguous and 8-byte aligned";
}

Text resolve(const ProjectProduct& p, bool backward, Product90& to) {
  const bool terms = p.a.row.width > 1;
  to.turned = terms ? Turned::a : p.b.row.stride[3] == 1 ? Turned::b : Turned::neither;
  if (p.bias) return reason_given("bias");
  if (p.add) return "a sum over a part of the rows, wanted all of them";
  const int64_t heads = p.a.column.heads, inner = p.k / heads;  // rows, or columns of a head
  const ProjectAxis& axis = terms ? p.a.column : p.a.row;
  const ProjectAxis& other = terms ? p.b.row : p.c.row;
  const int64_t count = terms ? inner : p.m;
  const Batches batches(axis, other, count);
  if (Text why = batches.refuse(axis, other, count); !why.empty()) return why;
  int64_t share_a, share_b;
  operand(to.a, share_a, p.a, axis, p.a.column, batches, p.z, terms ? p.m : inner);
  if (terms) {
    operand(to.b, share_b, p.b, other, p.b.row, batches, p.z, p.n);
  } else {
    const bool turned = to.turned == Turned::b;
    const int64_t stride = turned ? p.b.column.stride[3] : p.b.row.stride[3];
    to.b.tensor = {p.b.data, {0, stride, p.b.row.stride[2], 1}};
    to.b.dtype = p.b.dtype, to.b.batch = 1;
    to.b.row = turned ? p.n : inner, to.b.column = turned ? inner : p.n;
    share_b = p.b.row.share, to.b.head = ceil_div(p.z * heads, share_b);
    if (!turned && p.b.column.stride[3] != 1) return reason_rows("weight");
  }
  // A head that all share.
  if (to.a.tensor.stride[2] == 0) to.a.head = 1, share_a = INT_MAX;
  if (to.b.tensor.stride[2] == 0) to.b.head = 1, share_b = INT_MAX;
  if (const char* why = map_refuses(to.a); *why)
    return Text(backward && !terms ? "dy has " : "x has ") + why;
  if (const char* why = map_refuses(to.b); *why)
    return Text(terms ? "dy has " : "weight has ") + why;
  to.rows = terms ? p.m : batches.rows, to.columns = p.n;
  to.tile_batches = terms ? 1 : batches.batches;
  const char* name = terms ? "dweight" : backward ? "dx" : "y";
  if (Text why = place(p, name, batches, to); !why.empty()) return why;
  ProductWork90& w = to.work;
  const int64_t chunks = ceil_div(terms ? batches.rows : inner, kProductTerms);
  const int64_t in_batches = terms ? batches.batches : 1, all = chunks * in_batches * heads;
  const int64_t tiles = p.parts * p.z * to.tile_batches * ceil_div(to.rows, 64) * ceil_div(p.n, 64);
  if (all > INT_MAX || tiles > INT_MAX || p.z * heads > INT_MAX || to.rows > INT_MAX ||
      p.n > INT_MAX)
    return "more than 2^31 steps or tiles";
  const auto divisor = [](int64_t by) {
    return Divisor(static_cast<int>(std::min<int64_t>(by, INT_MAX)));
  };
  // Neighbouring heads lie side by side: their tiles of the same rows are worked on at once.
  int64_t section = 4;
  while (p.z % section) section /= 2;
  w.section = divisor(section), w.sections = divisor(p.z / section);
  to.z = p.z, w.heads = static_cast<int>(heads);
  w.rows = static_cast<int>(to.rows), w.columns = static_cast<int>(p.n);
  w.chunks = divisor(chunks), w.batches = divisor(in_batches);
  w.share_a = divisor(share_a), w.share_b = divisor(share_b);
  w.all = static_cast<int>(all), w.steps = static_cast<int>(ceil_div(all, p.parts));
  return "";
}

// Tiles of a shape, and the cycles of the block that has most of them.
struct Cost {
  int64_t across, tiles, items;
  double cycles;

  Cost(const ProductInstance90& shape, const Product90& p, int64_t parts, int multiprocessors) {
    constexpr double kCopied = 39;  // bytes of L2 a cycle
    across = ceil_div(p.columns, shape.columns), tiles = ceil_div(p.rows, shape.rows);
    items = across * tiles * p.tile_batches * p.z * parts;
    const double bytes = static_cast<double>(std::min<int64_t>(shape.rows, p.rows) +
                                             std::min<int64_t>(shape.columns, p.columns)) *
                         kProductTerms * 2;
    const double products = shape.rows / 64.0 * shape.columns / 2 * kProductTerms / 16;
    const double out = 200 + shape.rows * shape.columns / 40.0;  // of a tile: its way to C
    cycles = static_cast<double>(ceil_div(items, multiprocessors)) *
             (p.work.steps * std::max(products, bytes / kCopied) + out);
  }
};

const ProductInstance90* find(const Product90& p, int64_t parts, int multiprocessors) {
  const ProductInstance90* best = nullptr;
  for (const ProductInstance90& row : instances())
    if (row.dtype == p.a.dtype && (!best || Cost(row, p, parts, multiprocessors).cycles <
                                                Cost(*best, p, parts, multiprocessors).cycles))
      best = &row;
  return best;
}

// The maps of a product in tiles of `shape`.
Text map_both(const Product90& p, const ProductInstance90& shape, ProductMaps90& maps) {
  MapOf a = p.a, b = p.b;
  a.rows = p.turned == Turned::a ? kProductTerms : shape.rows;
  b.rows = p.turned == Turned::b ? shape.columns : kProductTerms;
  if (!p.c.tensor.data) return map_each({{"x", a, maps.a}, {"weight", b, maps.b}});
  return map_each({{"x", a, maps.a}, {"weight", b, maps.b}, {"y", p.c, maps.c}});
}

// A bias's gradient is a sum, without an operand.
void product(Context& ctx, const char* op, const ProjectProduct& given, float* parts) {
  if (!given.a.data) return project_product(ctx, op, given, parts);
  ProjectProduct p = given;
  Product90 own;
  resolve(p, false, own);
  const int multiprocessors = device_info(ctx).multiprocessors;
  ProductWork90& w = own.work;
  p.parts = ceil_div(w.all, w.steps);  // none is empty
  const ProductInstance90& shape = *find(own, p.parts, multiprocessors);
  const Cost cost(shape, own, p.parts, multiprocessors);
  ProductMaps90 maps;
  map_both(own, shape, maps);
  w.across = Divisor(static_cast<int>(cost.across));
  w.tiles = Divisor(static_cast<int>(cost.tiles));
  w.down = Divisor(static_cast<int>(cost.tiles * own.tile_batches));
  w.items = static_cast<int>(cost.items);
  if (p.parts > 1) {
    w.sums = parts;
    w.c_row = p.n, w.c_head = p.m * p.n, w.c_part = p.z * w.c_head;
  }
  shape.launch(ctx, op, own.turned, w, maps);
  project_add_parts(ctx, op, p, parts);
}

// Whether the kernel takes every product of a call, and the tiles of the first chunk's.
struct Check {
  const Context& ctx;
  bool backward;
  Text why, tiles;
  int named = 0;

  void product(const ProjectProduct& p) {
    if (!p.a.data || !why.empty()) return;
    Product90 own;
    ProductMaps90 maps;
    if (why = resolve(p, backward, own); !why.empty()) return;
    const ProductInstance90* shape = find(own, p.parts, device_info(ctx).multiprocessors);
    why = shape ? map_both(own, *shape, maps)
                : Text("no instance in this build for ") + dtype_name(p.a.dtype);
    if (!why.empty() || named++ >= 1 + backward) return;
    static constexpr const char* turned[] = {".", ".a", ".b"};
    tiles += Text(turned[static_cast<int>(own.turned)]) + Text::number(shape->rows) + "x" +
             Text::number(shape->columns);
  }
  void finish(int64_t, int64_t) const {}
};

Text refuses(const Context& ctx, const Project& a, bool backward) {
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (a.dtype != FOVEA_F16 && a.dtype != FOVEA_BF16) return reason_dtype(a.dtype);
  if (a.layers > 1) return reason_given("weight2");
  // TMA has no empty tensor: it would read one row.
  if (!a.rows() || !a.products() || !a.width[0] || !a.f())
    return "there are no rows, heads or columns";
  if (Text why = refuse_width("d", a.width[0], 8); !why.empty()) return why;
  if (Text why = refuse_width("f", a.f(), 8); !why.empty()) return why;
  if (!backward) return "";
  if (a.norm_weight) return reason_given("norm_weight");
  if (a.rope.half) return reason_given("cos");
  if (a.y_dtype != a.dtype) return reason_dtype("dy.dtype", a.y_dtype, a.dtype, "x");
  return "";
}

}  // namespace
}  // namespace cuda

namespace {

template <bool Backward>
Text offer(const Context& ctx, const Project& a, Plan& plan) {
  if (Text why = cuda::refuses(ctx, a, Backward); !why.empty()) return why;
  Layout none;
  ProjectRooms rooms = project_layout(a, Backward, none).at(nullptr);
  cuda::Check check{ctx, Backward, "", ""};
  if (!project_idle(a, Backward)) ProjectSteps(a, Backward, rooms).each(check);
  if (!check.why.empty()) return check.why;
  cuda::project_offer<cuda::product>(a, Backward, plan);
  plan.kernel += check.tiles;
  return "";
}

}  // namespace

extern const Kernel<Project> project_forward_sm90 = {"sm90", offer<false>};
extern const Kernel<Project> project_backward_sm90 = {"sm90", offer<true>};

}  // namespace fovea
