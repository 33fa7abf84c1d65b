// SPDX-License-Identifier: Apache-2.0
// fovea_info: what was found here, and which kernel would serve a call, and why.  It stands on the
// public C ABI alone.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "call.h"
#include "fovea/experimental/recipe.h"
#include "report.h"

namespace info {
namespace {

constexpr char kUsage[] =
    "usage: fovea_info                          what the library and this machine are\n"
    "       fovea_info OPERATION NAME=VALUE ... which kernel would serve the call, and why\n"
    "       fovea_info OPERATION --help         the names that the operation has\n"
    "       fovea_info --recipes                the methods by name: papers and calls\n"
    "\n"
    "Nothing is computed and no memory is taken: the call is planned, as its workspace query "
    "does.\n"
    "\n"
    "  NAME=VALUE         of the operation's header:\n"
    "    s=512            an extent; e is d unless it is given, b is 1 in a packed call\n"
    "    mask=1           an optional tensor is given, and contiguous; dq=0: an output is not\n"
    "    bias=bf16        a tensor is given and has this dtype\n"
    "    dtype=bf16       the dtype of every tensor that takes it; default the first of each\n"
    "    causal=1         a number; values of an enum have names too, scaling=yarn\n"
    "  --host             on the CPU; the default where there is no GPU\n"
    "  --cuda[=DEVICE]    on that GPU; the default where there is one, 0\n"
    "\n"
    "Gradients d<x> are outputs where x is given.\n"
    "Exit status: 0, or 1 where the library refuses the call, or 2 where the words make none.\n"
    "\n"
    "  fovea_info attention_forward b=2 s=512 t=512 h=32 g=8 d=128 dtype=bf16 causal=1\n"
    "  fovea_info attention_forward b=8 s=1 h=32 g=8 d=128 dtype=bf16 page_table=1 pages=64 \\\n"
    "      pool=4096 page=16 key_len=1\n"
    "\n"
    "Operations:\n";

struct Options {
  bool help = false, recipes = false, backend_given = false;
  fovea_backend backend = FOVEA_HOST;
  int32_t device = 0;
  Words words;
};

Options read(int count, char** arguments) {
  Options options;
  for (int i = 0; i < count; ++i) {
    const std::string word = arguments[i];
    if (word == "--help" || word == "-h") {
      options.help = true;
    } else if (word == "--recipes") {
      options.recipes = true;
    } else if (word == "--host" || word.substr(0, 6) == "--cuda") {
      const fovea_backend backend = word == "--host" ? FOVEA_HOST : FOVEA_CUDA;
      if (options.backend_given) throw Misuse("one of --host and --cuda, once");
      options.backend_given = true, options.backend = backend;
      if (word.size() > 6) {
        const std::string device = word.substr(7);
        if (word[6] != '=' || device.empty() || device.size() > 4 ||
            device.find_first_not_of("0123456789") != std::string::npos)
          throw Misuse("'" + word + "', wanted --cuda or --cuda=0, with the number of a device");
        options.device = std::stoi(device);
      }
    } else if (word[0] == '-') {
      throw Misuse("there is no option " + word + "; --help lists them");
    } else {
      options.words.push_back(word);
    }
  }
  return options;
}

void list_operations() {
  for (const Operation& op : operations()) std::printf("  %s\n", op.name.c_str());
}

// As `python -m fovea recipes` has them.
void list_recipes() {
  for (int64_t i = 0; i < fovea_x_recipe_count(); ++i) {
    fovea_x_recipe r = {};
    r.struct_size = sizeof r;
    if (fovea_x_recipe_at(i, &r)) throw std::runtime_error(fovea_last_error());
    Words call = {r.operation};
    for (const std::string& need : split(r.needs)) call.push_back(need + "=...");
    for (const std::string& number : split(r.numbers)) call.push_back(number);
    const bool number = *r.paper >= '0' && *r.paper <= '9';
    std::printf("%s%-20s %s, %s%s (%d)\n    %s\n", i ? "\n" : "", r.name, r.title,
                number ? "arXiv " : "", r.paper, static_cast<int>(r.year), joined(call).c_str());
    if (*r.backward) std::printf("    trained by %s\n", r.backward);
    std::printf("    %s\n", r.words);
  }
}

void help_with(const Operation& op) {
  std::printf("fovea_info %s NAME=VALUE ...\n\nExtents\n", op.name.c_str());
  std::vector<Row> rows;
  for (const std::string& extent : op.extents()) rows.push_back({"  " + extent, meaning(extent)});
  print(rows);
  std::printf("\nTensors\n");
  rows.clear();
  for (const Field& f : op.fields)
    if (f.is_tensor()) {
      std::string text = f.output ? "out, (" : "in, (";
      text += joined(f.dims) + ")";
      if (!f.paged.empty()) text += " or paged (" + joined(f.paged) + ")";
      Words dtypes = f.dtypes;
      if (!f.dtype_as.empty()) dtypes.insert(dtypes.begin(), "as " + f.dtype_as);
      text += " " + joined(dtypes);
      rows.push_back({"  " + f.name, f.required ? text : text + "; optional"});
    }
  print(rows);
  rows.clear();
  for (const Field& f : op.fields)
    if (f.is_number()) {
      Words names;
      for (const Value& value : values_of(f.words)) names.push_back(value.name);
      rows.push_back({"  " + f.name, names.empty() ? f.words : joined(names)});
    }
  if (!rows.empty()) std::printf("\nNumbers\n");
  print(rows);
}

// The default: a GPU where there is one.
fovea_backend backend_of(const Options& options) {
  int32_t count = 0;
  if (options.backend_given) return options.backend;
  return fovea_device_count(FOVEA_CUDA, &count) == FOVEA_OK && count ? FOVEA_CUDA : FOVEA_HOST;
}

int refused(fovea_status status) {
  std::fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  return 1;
}

// "sm90: bias is given, wanted none; sm80: ..." as rows.
void add_reasons(std::string reasons, fovea_context* ctx, std::vector<Row>& rows) {
  if (reasons.empty()) {
    const bool host = std::string(fovea_context_last_plan(ctx)).find(".host") != std::string::npos;
    rows.push_back({"why", host ? "the host has one kernel" : "it is the best of this backend"});
  }
  while (!reasons.empty()) {
    const size_t end = reasons.find("; ");
    const std::string one = reasons.substr(0, end);
    const size_t colon = one.find(": ");
    rows.push_back({"not " + one.substr(0, colon), one.substr(colon + 2)});
    reasons = end == std::string::npos ? "" : reasons.substr(end + 2);
  }
}

int plan(const Options& options) {
  const std::string& name = options.words[0];
  const Operation* op = find_operation(name);
  if (!op) {
    Words names;
    for (const Operation& known : operations()) names.push_back(known.name);
    throw Misuse("there is no operation '" + name + "', wanted one of " + joined(names));
  }
  if (options.help) return help_with(*op), 0;
  const Call call(*op, {options.words.begin() + 1, options.words.end()});
  fovea_context* ctx = nullptr;
  if (const fovea_status status = fovea_context_create(backend_of(options), options.device, &ctx))
    return refused(status);
  const std::unique_ptr<fovea_context, void (*)(fovea_context*)> owned(ctx, fovea_context_destroy);
  size_t bytes = 0;
  if (const fovea_status status = op->query(ctx, call.params(), &bytes)) return refused(status);
  std::vector<Row> rows = {{"operation", op->name}};
  const std::string kernel = fovea_context_last_plan(ctx);
  const std::string reasons = fovea_context_last_reasons(ctx);
  const std::vector<Row> given = call.rows();
  rows.insert(rows.end(), given.begin(), given.end());
  rows.push_back({"kernel", kernel});
  rows.push_back({"workspace", std::to_string(bytes) + " bytes"});
  add_reasons(reasons, ctx, rows);
  rows.insert(rows.begin() + 1, {"on", device_text(ctx)});
  print(rows);
  return 0;
}

int run(int count, char** arguments) {
  const Options options = read(count - 1, arguments + 1);
  if (options.recipes) {
    if (count > 2) throw Misuse("--recipes stands alone");
    return list_recipes(), 0;
  }
  if (!options.words.empty()) return plan(options);
  if (options.help) {
    std::fputs(kUsage, stdout);
    list_operations();
    return 0;
  }
  if (options.backend_given) throw Misuse("--host and --cuda go with an operation");
  print(report());
  return 0;
}

}  // namespace
}  // namespace info

int main(int count, char** arguments) {
  try {
    return info::run(count, arguments);
  } catch (const std::exception& why) {
    std::fprintf(stderr, "fovea_info: %s\n", why.what());
    return 2;
  }
}
