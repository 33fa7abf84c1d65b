#include "cases/all.h"
#include "core/plan.h"
#include "ops/gla/gla.h"
#include <chrono>
fovea::Text emu_offer(const fovea::Context&, const fovea::RecurBackward&, fovea::Plan&);
namespace fovea {
extern const Kernel<Recur> gla_forward_host = {"", nullptr}, gla_forward_sm90 = {"sm90", nullptr}, gla_forward_simt = {"simt", nullptr};
extern const Kernel<RecurBackward> gla_backward_host = {"", nullptr};
extern const Kernel<RecurBackward> gla_backward_sm90 = {"sm90", [](const Context&, const RecurBackward& b, Plan&) { return Text(b.forward.gate_key ? "gate_key is given" : "x"); }};
extern const Kernel<RecurBackward> gla_backward_simt = {"simt", [](const Context&, const RecurBackward&, Plan& p) { return Text(""); }};
Plan plan(const Context& ctx, const fovea_x_gla_backward_params& p);
Device* make_cuda_device(int) { return nullptr; }
}
int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : ".key"; const bool twice = argc > 2;
  int bad = 0, good = 0; if (filter == "list") { for (const harness::Case& c : cases::all()) if (c.cuda_kernel.find(".key") != std::string::npos && c.op == "x_gla_backward") std::puts(c.name.c_str()); return 0; }
  for (const harness::Case& c : cases::all()) {
    const bool all = getenv("ALL"); if (c.op != "x_gla_backward" || (all ? c.name.find("gate_key") == std::string::npos || c.name.find("qbf16") == std::string::npos || !c.cuda_kernel.empty() : c.cuda_kernel.find(".key") == std::string::npos)) continue;
    if (c.name.find(filter) == std::string::npos && c.cuda_kernel.find(filter) == std::string::npos) continue;
    const auto begun = std::chrono::steady_clock::now();
    harness::Call call = c.build(harness::seed_of(c.op + "/" + c.name) + (getenv("SEED") ? atoi(getenv("SEED")) : 0));
    std::vector<std::vector<uint8_t>> first;
    for (int run = 0; run < (twice ? 2 : 1); ++run) {
      std::vector<std::vector<uint8_t>> before, after; std::vector<uint8_t*> at;
      for (auto& s : call.storages) {
        std::vector<uint8_t> bytes = s.image;
        for (size_t i = 0; i < bytes.size(); ++i) if (s.cover[i] == harness::kGap || s.cover[i] == harness::kUnused) bytes[i] = 0xff; else if (s.cover[i] == harness::kWritten) bytes[i] = 0x5a;
        before.push_back(bytes); uint8_t* p = (uint8_t*)aligned_alloc(256, (bytes.size() + 255) / 256 * 256); memcpy(p, bytes.data(), bytes.size()); at.push_back(p); }
      for (auto& f : call.fields) call.slot(f) = f.tensor, call.slot(f).data = at[f.storage] + f.start;
      fovea_context ctx; ctx.backend = FOVEA_CUDA; 
      std::string kernel;
      {
        fovea::Plan plan = fovea::plan(ctx, *reinterpret_cast<fovea_x_gla_backward_params*>(call.params.data()));
        kernel = plan.kernel.c_str();
        if (kernel.find(".sm90.") == std::string::npos) { if (all) break; std::printf("FAIL %s: kernel %s, reasons %s\n", c.name.c_str(), kernel.c_str(), plan.reasons.c_str()); ++bad; break; }
        const size_t n = (plan.workspace.bytes() + 511) / 256 * 256; uint8_t* ws = (uint8_t*)aligned_alloc(256, n); memset(ws, 0xff, n);
        plan.launch(ctx, ws);
        for (size_t i = plan.workspace.bytes(); i < n; ++i) if (ws[i] != 0xff) { std::puts("workspace overrun"); ++bad; break; }
        free(ws);
      }
      for (size_t s = 0; s < at.size(); ++s) after.push_back(std::vector<uint8_t>(at[s], at[s] + before[s].size())), free(at[s]);
      std::string wrong = harness::find_damage(call, before, after);
      if (run) { if (std::string d = harness::first_difference(call, first, after); !d.empty()) wrong += "DIFFER " + d; }
      std::string ratios;
      for (size_t i = 0; i < call.fields.size(); ++i) { const auto& f = call.fields[i]; if (!f.expected()) continue;
        const auto got = harness::values_of(call, i, after);
        harness::Errors k, r; double v2 = 0; 
        for (size_t n = 0; n < got.size(); ++n) { if (!f.exact.written[n]) continue; const double w = f.exact.value[n]; if (!std::isfinite(w) || !std::isfinite(got[n])) continue; k.add(got[n] - w); r.add(f.rounded.value[n] - w); v2 += w * w; }
        const double rms = k.count ? std::sqrt(v2 / k.count) : 0;
        char t[120]; std::snprintf(t, sizeof t, " %s %.1e/%.2f/%.2f", f.name.c_str(), rms ? k.rms() / rms : 0, r.rms() ? k.rms() / r.rms() : 0, r.max ? k.max / r.max : 0); ratios += t;
        if (std::string e = harness::compare(f.exact, f.rounded, got, f.bitwise); !e.empty()) wrong += "\n      " + f.name + ": " + e; }
      std::printf("%s %s [%s] %.1fs\n   %s%s\n", wrong.empty() ? "ok  " : "FAIL", c.name.c_str(), kernel.c_str(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), ratios.c_str(), wrong.c_str());
      wrong.empty() ? ++good : ++bad; fflush(stdout); first = after;
    }
  }
  std::printf("%d good, %d bad\n", good, bad);
}
