// SPDX-License-Identifier: Apache-2.0
// One strip of rows of a group of heads.  Each head has its strip_gradient_host.h; between the
// steps they are mixed, A to B, dR to dP, and back:
//   B = before A,  P = exp(B - lse),  dP = after' dR,  dB = P (dP - delta)
//   R = after P (for dv),  dA = before' dB (for all else)
#pragma once
#include "ops/conv_attention/mixed_tile_host.h"
#include "ops/conv_attention/strip_gradient_host.h"

namespace fovea::conv_host {

// Carved out of a worker's workspace.
struct GroupGradientRoom {
  GroupGradientRoom() = default;
  GroupGradientRoom(const Call& call, const MixedAttendBackward& request, Layout& layout);
  GradientRoom head;  // within a head's bytes
  size_t head_bytes;
  Slot<unsigned char> heads;
  Slot<StripGradient> strips;  // of each head: too large together for a small stack
  Slot<float> b, slope;
  Slot<double> sums;  // X: [out head][head of the group][row]
};

class GroupGradient {
 public:
  GroupGradient(const Call& call, const MixedAttendBackward& request, const GroupGradientRoom& room,
                void* base, const Sequence& q, int64_t sequence, int64_t head, int64_t first,
                const float* delta);

  // X of the strip's rows: [out head][head of the group][row], kLanes rows apart.
  const double* measure();
  // Adds what the keys [begin, end) give; dbefore (group, group) of the part, or nullptr.
  void run(int64_t begin, int64_t end, const StripGradient::Sums* sums, double* dbefore);

  const Strip& own() const { return strips_[0].own(); }
  const float* dq(int64_t n) const { return strips_[n].dq(); }

 private:
  // A step of every head; afterwards b_ is P, slope_ dP.
  bool next(StripGradient::Step& step);
  void dscores(const StripGradient::Step& step);
  void add_before(const StripGradient::Step& step, double* dbefore) const;
  Tiles p() const { return {strips_[0].p(), pitch_}; }
  Tiles da() const { return {strips_[0].da(), pitch_}; }

  const Call& call_;
  const Sequence q_;
  const int64_t group_, pitch_;
  const Mixer before_, after_;
  const Tiles b_, slope_;
  double* sums_;
  StripGradient* const strips_;
};

}  // namespace fovea::conv_host
