// SPDX-License-Identifier: Apache-2.0
// KeySource of the forward sweeps of Hopper: which tiles of keys a row tile walks, and where they
// lie.
//
//   | source      | tiles walked               | where they lie                         |
//   | Contiguous  | those that the mask leaves | rows of the tensor                     |
//   | Pages       | those that the mask leaves | pages, or rows where no page is given  |
//   | List        | those of a list            | rows of the tensor                     |
//   | ListOfPages | those of a list            | pages, or rows where no page is given  |
//   | Spans       | those of a span of a list  | rows of the tensor                     |
//   | SpansOfPages| those of a span of a list  | pages, or rows where no page is given  |
//   | Unions, UnionsOfPages      | the same, seen by some rows each | the same       |
//   | Blocks      | blocks of a span, some each| the same                               |
//
// An operation may bring its own: of codes, ops/quant/forward_sm90.cuh.
// A walk has steps, from the last to the first.  Of a list a step is a place in it, else a tile.
#pragma once
#include <concepts>

#include "cuda/loop/mask.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_lists.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

// Where a tile of keys lies: the storage index of its first, in its page where that is larger, and
// the pool page of the lane's box, past the pool for none.
struct KeyBox {
  int row, page;
};

// Of Steps, which are kept in the slot of a work item:
//   tiles(call, tile, width)        the steps of a row tile, a step being `width` keys
//   start(call, tile, width, mask)  once a work item, whose mask may come to speak of steps
//   key_tile(n)                     which tile of keys step n is
//   reads_device                    they read device data, which the kernel before may write
template <class S>
concept KeySource = requires(const typename S::Call& call, const RowTile& tile,
                             typename S::Steps steps, WindowMask& mask, int n) {
  { S::Steps::reads_device } -> std::convertible_to<bool>;
  { S::Steps::template tiles<WindowMask>(call, tile, n) } -> std::same_as<KeyTiles>;
  steps.start(call, tile, n, mask);
  { steps.key_tile(n) } -> std::same_as<int>;
};
// Of Boxes, by which producers copy: pages() says whether keys come in pages; box(work, n, lane,
// stretch) is where step n lies, for each lane its part.  A Stretch is what a walk remembers.
template <class B, class Work>
concept KeyBoxes = requires(const B boxes, const Work& work, int n, typename B::Stretch& stretch) {
  { B::paged } -> std::convertible_to<bool>;
  { boxes.pages() } -> std::same_as<bool>;
  { boxes.box(work, n, n, stretch) } -> std::same_as<KeyBox>;
};
// 64 keys of a step that lie in one page: from row `row` of pool page `page` on, < 0 for none.  The
// first of them is key `key` of the sequence.
struct PagePart {
  int page, row, key;
};

// ---- which tiles

// Steps are the tiles that the mask leaves.
struct SeenTiles {
  using Call = Attend;
  static constexpr bool reads_device = false;

  template <class Mask>
  __device__ static KeyTiles tiles(const auto& call, const RowTile& tile, int width) {
    return Mask::tiles(attend_in(call), tile, width);
  }
  template <class Mask>
  __device__ void start(const Attend&, const RowTile&, int, Mask&) {}
  __device__ int key_tile(int n) const { return n; }
};

// Steps are places in the list of the row tile.  What it asks of the lists:
//   entries ascend
//   a row block is a row tile, and a row tile is of one query head (no packed GQA)
//   a key block is one tile of keys, or two
// The mask is a WindowMask; its begin and end, the tiles that every row sees whole, become steps.
struct ListedTiles {
  using Call = ListedAttend;
  static constexpr bool reads_device = true;
  const int32_t* entry;
  int steps, shift;  // of the list; a key block is 1 << shift tiles

  // But for a tile of the last key block that lies past the last key.
  template <class Mask>
  __device__ static KeyTiles tiles(const ListedAttend& a, const RowTile& tile, int width) {
    static_assert(std::same_as<Mask, WindowMask>);
    const int64_t row = row_of(a, tile);
    const int shift = a.list.block_keys > width, blocks = a.list.count[row];
    if (!blocks) return {0, 0, 0};
    const int last = ((a.list.entry[row * a.list.keep + blocks - 1] + 1) << shift) - 1;
    return {0, 0, (int64_t{blocks} << shift) - (last * width >= tile.keys)};
  }
  template <class Mask>
  __device__ void start(const ListedAttend& a, const RowTile& tile, int width, Mask& mask) {
    entry = a.list.entry + row_of(a, tile) * a.list.keep;
    steps = static_cast<int>(tiles<Mask>(a, tile, width).last);
    shift = a.list.block_keys > width;
    const int full = mask.end;
    mask.begin = 0, mask.end = steps;
    while (mask.end > 0 && key_tile(mask.end - 1) >= full) --mask.end;
  }
  __device__ int key_tile(int n) const {
    return n < steps ? (entry[n >> shift] << shift) + (n & ((1 << shift) - 1)) : n;
  }

 private:
  __device__ static int64_t row_of(const ListedAttend& a, const RowTile& tile) {
    return (tile.rows.r * a.attend.h + tile.rows.g) * a.list.n + tile.begin / a.list.block_rows;
  }
};

// Steps are places in the span of the row tile (tile_lists.cuh).  A tile may stand there many
// times, the last one too.
//   They count from behind the last tile of the sequence, which no list reaches: a work item
//   without keys has a step before them, which stands for a tile that no row sees.
struct SpannedTiles {
  using Call = TiledAttend;
  static constexpr bool reads_device = true, repeats = true;
  const int32_t* place;  // of step `base`
  int base;

  template <class Mask>
  __device__ static KeyTiles tiles(const TiledAttend& a, const RowTile& tile, int width) {
    const TileSpan span = span_of(a.lists, tile);
    const int base = base_of(tile, width);
    return {0, base + span.begin, base + span.end};
  }
  template <class Mask>
  __device__ void start(const TiledAttend& a, const RowTile& tile, int width, Mask& mask) {
    const TileSpan span = span_of(a.lists, tile);
    base = base_of(tile, width);
    place = places_of(a.lists, tile);
    mask.begin = base + span.whole_begin, mask.end = base + span.whole_end;
  }
  __device__ int key_tile(int n) const { return n >= base ? place[n - base] : n; }

 protected:
  __device__ static int base_of(const RowTile& tile, int width) { return tile.keys / width + 2; }
  __device__ static const int32_t* places_of(const TileLists& lists, const RowTile& tile) {
    return lists.tile + row_of(lists, tile) * lists.most;
  }
  __device__ static TileSpan span_of(const TileLists& lists, const RowTile& tile) {
    const int number = tile.begin / lists.step;
    if (!lists.has(tile.rows.seq, tile.rows.r, number / lists.row_tiles * lists.rows)) return {};
    return lists.span[row_of(lists, tile) * lists.row_tiles + number % lists.row_tiles];
  }

 private:
  __device__ static int64_t row_of(const TileLists& lists, const RowTile& tile) {
    const int head = static_cast<int>(tile.rows.head_begin()) / lists.group;
    return lists.first(tile.rows.seq, tile.rows.r, head) +
           tile.begin / (lists.step * lists.row_tiles) * lists.rows;
  }
};

// Places of unions: some rows of the row tile alone see a tile.
struct SpannedUnions : SpannedTiles {
  static constexpr bool unions = true;
  int group;  // packed rows of a row

  template <class Mask>
  __device__ void start(const TiledAttend& a, const RowTile& tile, int width, Mask& mask) {
    SpannedTiles::start(a, tile, width, mask);
    group = tile.group();
  }
  __device__ int key_tile(int n) const { return n >= base ? tile_in(place[n - base]) : n; }
  // Hides step n from rows that do not see it; `row`: the warp's first in the row tile.
  template <int N>
  __device__ void hide(float (&x)[1][N][4], int n, int row) const {
    const int rows = n >= base ? rows_in(place[n - base]) : 0;
    each_row<1>(row, [&](int, int half, int m) {
      if (rows >> min(m / group, kUnionRows) & 1) return;
#pragma unroll
      for (int j = 0; j < N; ++j) x[0][j][2 * half] = x[0][j][2 * half + 1] = kNegativeInfinity;
    });
  }
};

// A step is `each` neighbouring places of the span, whose tiles are blocks of 16, 32 or 64 keys.
// Of the last step some may be missing.
struct SpannedBlocks : private SpannedTiles {
  using Call = TiledAttend;
  using SpannedTiles::reads_device, SpannedTiles::repeats;
  static constexpr bool blocks = true;
  int size, each, shift;  // places of the span; of a step; a block is 1 << shift keys

  template <class Mask>
  __device__ static KeyTiles tiles(const TiledAttend& a, const RowTile& tile, int width) {
    const TileSpan span = span_of(a.lists, tile);
    const int base = base_of(tile, width), each = width / a.lists.width;
    return {0, base, base + (span.end - span.begin + each - 1) / each};
  }
  template <class Mask>
  __device__ void start(const TiledAttend& a, const RowTile& tile, int width, Mask& mask) {
    const TileSpan span = span_of(a.lists, tile);
    base = base_of(tile, width);
    place = places_of(a.lists, tile) + span.begin;
    size = span.end - span.begin;
    each = width / a.lists.width, shift = __ffs(a.lists.width) - 1;
    mask.begin = base + (span.whole_begin - span.begin + each - 1) / each;
    mask.end = max(base + (span.whole_end - span.begin) / each, mask.begin);
  }
  // Only whether a step is before another's tile: no step is.
  __device__ int key_tile(int) const { return 0; }
  // The key in a column of step n; past every key where there is none.
  __device__ int key_at(int n, int column) const {
    const int at = (n - base) * each + (column >> shift);
    return n < base || at >= size ? static_cast<int>(kIndexMax)
                                  : (place[at] << shift) + (column & ((1 << shift) - 1));
  }
  __device__ int block_keys() const { return 1 << shift; }
};

// ---- where they lie

// As rows of the tensor.
template <class Shape>
struct RowBoxes {
  static constexpr bool paged = false;
  struct Stretch {};
  const Attend& a;

  __device__ RowBoxes(const Attend& a, const auto&) : a(a) {}
  __device__ bool pages() const { return false; }
  template <class Work>
  __device__ Stretch first(const Work&, const int*) const {
    return {};
  }
  template <class Work>
  __device__ KeyBox box(const Work& work, int step, int, Stretch&) const {
    return {work.count
                ? static_cast<int>(work.tile.rows.seq.key_begin) + work.key_tile(step) * Shape::BN
                : static_cast<int>(a.t),
            0};
  }
};

// In pages, of which a tile holds a whole number, at most 32, or one holds a whole number of tiles:
// a lane has a page, or a tile's part of one.  Without a page, as RowBoxes.
// A stretch of the page table ends with a step's pages, or begins with them where the walk ascends.
template <class Shape>
struct PageBoxes {
  static constexpr bool paged = true;
  static constexpr bool only_pages = Shape::TileK::interleaved;
  static constexpr int kStretch = 32;
  // Pool pages of a stretch of the page table, from `first` on one a lane.  A walk goes along it.
  struct Stretch {
    int first, page;
  };
  const Attend& a;
  const PageCuts& cuts;

  __device__ PageBoxes(const Attend& a, const auto& maps) : a(a), cuts(maps.pages) {}
  __device__ bool pages() const { return only_pages || a.sequences.page; }
  // A page that no key has.
  __device__ int nowhere() const { return static_cast<int>(a.sequences.pool); }

  // The lane's entry of the page table in the stretch of a step of the walk; nullptr: none, or of
  // no key.
  template <class Work>
  __device__ __forceinline__ const int32_t* entry_of(const Work& work, int step, int lane) const {
    return entry_from(work, first_of(work, step), lane);
  }
  __device__ __forceinline__ int page_at(const int32_t* entry) const {
    return entry ? *entry : nowhere();
  }
  // The stretch of a walk's first step, whose pages the scheduler has found.
  template <class Work>
  __device__ __forceinline__ Stretch first(const Work& work, const int* page) const {
    return {first_of(work, work.last), *page};
  }
  template <class Work>
  __device__ __forceinline__ KeyBox box(const Work& work, int step, int lane,
                                        Stretch& stretch) const {
    const int n = work.key_tile(step);
    KeyBox keys{work.count ? static_cast<int>(work.tile.rows.seq.key_begin) + n * Shape::BN
                           : static_cast<int>(a.t),
                0};
    if (!pages()) return keys;
    const int place = place_of(n), tiles = cuts.tiles;
    bool past = place < stretch.first;
    if constexpr (Work::kAscends) past = place + cuts.boxes > stretch.first + kStretch;
    if (past) {
      stretch.first = first_at<Work>(place);
      stretch.page = page_at(entry_from(work, stretch.first, lane));
    }
    keys.row = tiles > 1 ? (n - place * tiles) * Shape::BN : 0;
    keys.page = __shfl_sync(~0u, stretch.page, place - stretch.first + lane);
    return keys;
  }

 private:
  // The place in the page table of a tile's first page.
  __device__ int place_of(int tile) const {
    const uint32_t tiles = cuts.tiles;
    return tiles > 1 ? static_cast<uint32_t>(tile) / tiles : tile * cuts.boxes;
  }
  template <class Work>
  __device__ int first_of(const Work& work, int step) const {
    return first_at<Work>(place_of(work.key_tile(step)));
  }
  template <class Work>
  __device__ int first_at(int place) const {
    if constexpr (Work::kAscends) return place;
    return place + cuts.boxes - kStretch;
  }
  template <class Work>
  __device__ __forceinline__ const int32_t* entry_from(const Work& work, int first,
                                                       int lane) const {
    const int place = first + lane;
    if (lane >= kStretch || !work.count || place < 0 ||
        place * static_cast<int>(a.sequences.page) >= work.tile.keys)
      return nullptr;
    const View<2>& table = a.sequences.page_table;
    return table.as<int32_t>() + max(work.tile.rows.seq.key_batch, int64_t{0}) * table.stride[0] +
           place * table.stride[1];
  }
};

// A box for each block of SpannedBlocks, or for each of its pages: in pages or as rows.
//   A stretch is the steps whose boxes 32 lanes hold, down to `first`.
template <class Shape>
struct BlockBoxes {
  static constexpr bool paged = true;
  struct Stretch {
    int first, row, page;
  };
  const Attend& a;
  const PageCuts& cuts;

  __device__ BlockBoxes(const Attend& a, const auto& maps) : a(a), cuts(maps.pages) {}
  __device__ bool pages() const { return true; }
  __device__ int nowhere() const {
    return static_cast<int>(a.sequences.page ? a.sequences.pool : a.sequences.caches);
  }
  // A walk finds its first boxes itself: all of it depends on the list.
  template <class Work>
  __device__ __forceinline__ const int32_t* entry_of(const Work&, int, int) const {
    return nullptr;
  }
  __device__ __forceinline__ int page_at(const int32_t*) const { return nowhere(); }
  template <class Work>
  __device__ __forceinline__ Stretch first(const Work& work, const int*) const {
    return stretch_to(work, work.last, threadIdx.x % 32);
  }
  template <class Work>
  __device__ __forceinline__ KeyBox box(const Work& work, int step, int lane,
                                        Stretch& stretch) const {
    if (step < stretch.first) stretch = stretch_to(work, step, lane);
    const int from = (step - stretch.first) * cuts.boxes + lane;
    return {__shfl_sync(~0u, stretch.row, from), __shfl_sync(~0u, stretch.page, from)};
  }

 private:
  template <class Work>
  __device__ __forceinline__ Stretch stretch_to(const Work& work, int step, int lane) const {
    const int boxes = cuts.boxes, first = step - 32 / boxes + 1;
    const int at = lane / boxes;
    const int key = work.key_at(first + at, (lane - at * boxes) * cuts.rows);
    if (key >= work.tile.keys) return {first, 0, nowhere()};
    const Sequence& seq = work.tile.rows.seq;
    if (!a.sequences.page)
      return {first, static_cast<int>(seq.key_begin) + key, static_cast<int>(seq.key_batch)};
    const View<2>& table = a.sequences.page_table;
    const int page = static_cast<int>(a.sequences.page), number = key / page;
    return {first, key - number * page,
            table.as<int32_t>()[seq.key_batch * table.stride[0] + number * table.stride[1]]};
  }
};

// As rows of the tensor, a box for each 64 keys of a step: each lane has one.
//   A stretch is the steps whose boxes 32 lanes hold, down to `first`.
template <class Shape>
struct PartBoxes {
  static constexpr bool paged = false;
  static constexpr int parts = Shape::BN / kTileKeys;
  struct Stretch {
    int first = static_cast<int>(kIndexMax), key = 0;
  };

  __device__ PartBoxes(const Attend&, const auto&) {}
  __device__ bool pages() const { return false; }
  template <class Work>
  __device__ Stretch first(const Work&, const int*) const {
    return {};
  }
  // The key that the lane's box begins with; past every key where there is none.
  template <class Work>
  __device__ __forceinline__ KeyBox box(const Work& work, int step, int lane,
                                        Stretch& stretch) const {
    constexpr int steps = 32 / parts;
    if (step < stretch.first) {
      stretch.first = step - steps + 1;
      stretch.key = work.key_at(stretch.first + lane / parts, lane % parts * kTileKeys);
    }
    return {__shfl_sync(~0u, stretch.key, (step - stretch.first) * parts + lane), 0};
  }
};

// The page of each lane's box, of the steps whose boxes 32 lanes hold, down to `first`.
struct PageStretch {
  int first = static_cast<int>(kIndexMax), row = 0, page = 0;
};
// What boxes of one page each share.
struct BoxesOfPages {
  static constexpr bool paged = false, of_pages = true;
  using Stretch = PageStretch;
  const Attend& a;

  __device__ bool pages() const { return false; }
  template <class Work>
  __device__ Stretch first(const Work&, const int*) const {
    return {};
  }

 protected:
  // `each`: boxes of a step of `width` keys.
  template <class Work>
  __device__ __forceinline__ KeyBox find_box(const Work& work, int step, int lane, int each,
                                             int width, Stretch& stretch) const {
    if (step < stretch.first) {
      stretch.first = step - 32 / each + 1;
      find(work, (stretch.first + lane / each) * width + lane % each * (width / each), stretch);
    }
    const int from = (step - stretch.first) * each + lane;
    return {__shfl_sync(~0u, stretch.row, from), __shfl_sync(~0u, stretch.page, from)};
  }

 private:
  // No page: before the first key, past the last, not in the pool.
  template <class Work>
  __device__ __forceinline__ void find(const Work& work, int key, Stretch& stretch) const {
    stretch.row = 0, stretch.page = -1;
    if (!work.count || static_cast<uint32_t>(key) >= static_cast<uint32_t>(work.tile.keys)) return;
    const Sequences& at = a.sequences;
    const View<2>& table = at.page_table;
    const int size = static_cast<int>(at.page), number = key / size;
    const int page = table.as<int32_t>()[work.tile.rows.seq.key_batch * table.stride[0] +
                                         number * table.stride[1]];
    if (page >= at.pool) return;
    stretch.row = key - number * size, stretch.page = page;
  }
};

// In pages of a multiple of 64 tokens, a box for each 64 keys of a step: each lane has one.
// Consumers read where it lies (PagePart) beside the stage.
template <class Shape>
struct PagePartBoxes : BoxesOfPages {
  static constexpr int parts = Shape::BN / kTileKeys;

  __device__ PagePartBoxes(const Attend& a, const auto&) : BoxesOfPages{a} {}
  template <class Work>
  __device__ __forceinline__ KeyBox box(const Work& work, int step, int lane,
                                        Stretch& stretch) const {
    return find_box(work, step, lane, parts, Shape::BN, stretch);
  }
};

// Keys of a box of smaller pages: a power of two, 32 at most.
FOVEA_HD int run_box(int64_t page) {
  const int least = static_cast<int>(page & -page);
  return least < 32 ? least : 32;
}
// In pages of a multiple of 16 tokens, a box for each 16 or 32 keys.  Consumers read bits beside
// the stage: bit n, keys [16 n, 16 n + 16) of the step have no page.
template <class Shape>
struct PageRunBoxes : BoxesOfPages {
  static constexpr bool of_runs = true;
  const int keys, count;  // of a box; boxes of a step

  __device__ PageRunBoxes(const Attend& a, const auto&)
      : BoxesOfPages{a}, keys(run_box(a.sequences.page)), count(Shape::BN / keys) {}
  template <class Work>
  __device__ __forceinline__ KeyBox box(const Work& work, int step, int lane,
                                        Stretch& stretch) const {
    return find_box(work, step, lane, count, Shape::BN, stretch);
  }
  // By a warp whose lanes have the boxes of a step.
  __device__ uint32_t absent(const KeyBox& box, int lane) const {
    const int page = __shfl_sync(~0u, box.page, lane * 16 / keys);
    return __ballot_sync(~0u, page < 0 && lane < Shape::BN / 16);
  }
};

// ---- both

template <class Steps_, template <class> class Boxes_>
struct KeySourceOf {
  using Steps = Steps_;
  using Call = typename Steps::Call;  // the kernel's argument
  template <class Shape>
  using Boxes = Boxes_<Shape>;
};
using Contiguous = KeySourceOf<SeenTiles, RowBoxes>;
using Pages = KeySourceOf<SeenTiles, PageBoxes>;
using List = KeySourceOf<ListedTiles, RowBoxes>;
using ListOfPages = KeySourceOf<ListedTiles, PageBoxes>;
using Spans = KeySourceOf<SpannedTiles, RowBoxes>;
using SpansOfPages = KeySourceOf<SpannedTiles, PageBoxes>;
using Unions = KeySourceOf<SpannedUnions, RowBoxes>;
using UnionsOfPages = KeySourceOf<SpannedUnions, PageBoxes>;
using Blocks = KeySourceOf<SpannedBlocks, BlockBoxes>;
static_assert(KeySource<Blocks> && KeySource<Contiguous> && KeySource<Pages> && KeySource<List> &&
              KeySource<ListOfPages> && KeySource<Spans> && KeySource<SpansOfPages>);
// A list that a kernel ignores does not compile, nor does a kernel without its list.
static_assert(!std::convertible_to<const ListedAttend&, const Attend&>);
static_assert(!std::convertible_to<const Attend&, const ListedAttend&>);

// Whether lengths or places of sequences are device data, which the kernel before may write.
__device__ inline bool geometry_on_device(const Attend& a) {
  const Sequences& given = a.sequences;
  return given.query_start || given.key_start || given.query_len || given.key_len ||
         given.key_first || given.cache_row;
}
// Whether what a work item is, and where its keys lie, depends on such data.
template <class Source, class Boxes>
__device__ inline bool depends_on_device(const Attend& a, const Boxes& boxes) {
  return Source::Steps::reads_device || geometry_on_device(a) || boxes.pages();
}

}  // namespace fovea::cuda
