#include "apps/artifact_commands.h"

#include "formats/error.h"
#include "formats/sha256.h"
#include "libcalib/artifacts/absorb.h"
#include "libcalib/artifacts/convert.h"

namespace oscar::cli {
namespace {

namespace fs = std::filesystem;

int convert_command(const ArtifactArguments& a, const std::vector<fs::path>& inputs, const fs::path& output,
                    bool json, const Common& common) {
  ConvertOptions options{.to = a.to,
                         .base = a.base,
                         .order = {},
                         .kv_heads = a.kv_heads,
                         .layer_ids = a.layer_ids,
                         .id_space = a.id_space,
                         .threads = threads_or_cores(common.threads)};
  if (!a.rotary_order.empty())
    options.order = a.rotary_order == "same" ? RotaryOrder::Same : RotaryOrder::Interleaved;
  const Conversion done = convert(inputs, output, options);
  for (const auto& text : done.notes) note(common.quiet, "note: " + text);
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const auto& file : done.files) {
    const auto digest = sha256_file(file);
    note(common.quiet, fmt::format("wrote {}  sha256 {}", file.string(), digest.substr(0, 16)));
    files.push_back({{"path", file.string()}, {"sha256", digest}});
  }
  if (json) print_json({{"schema", "oscar-convert/1"}, {"files", files}, {"notes", done.notes}});
  return 0;
}

RotationSet values_of(const std::vector<fs::path>& inputs) {
  if (inputs.size() != 1)
    throw invalid("--absorb-v: expected one rotation file of V, or a directory of oscar-fit, found {}",
                  inputs.size());
  return std::move(rotations_in(inputs[0]).back());
}

int absorb_command(const ArtifactArguments& a, const std::vector<fs::path>& inputs, const fs::path& output,
                   bool json, const Common& common) {
  const RotationSet rotations = values_of(inputs);
  AbsorbReport report;
  {
    Progress progress("absorb", "shards", common.quiet);
    report = absorb_v(a.absorb_model, rotations, output,
                      {a.fold_output, [&](int64_t done, int64_t total) {
                         progress.update(done, total, fmt::format("{}/{}", done, total));
                       }});
  }
  note(common.quiet,
       fmt::format("{}: V projections of {} layers, {} KV heads of {} dims, {}: W' = R_v^T W with '{}'",
                   output.string(), report.layers, report.kv_heads, report.head_dim, report.dtype,
                   rotations.objective));
  if (!report.left.empty())
    note(common.quiet, fmt::format("note: left behind: {}", fmt::join(report.left, ", ")));
  note(common.quiet,
       a.fold_output
           ? "o_proj undoes the rotation: the model's output is the original; tell no engine to rotate V"
           : "next: the engine must undo the rotation after attention and must not rotate V again: "
             "SGLANG_OSCAR_ABSORB_V_ROTATION=1 with the same rotation file");
  if (json) {
    print_json({{"schema", "oscar-absorb/1"},
                {"output", output.string()},
                {"layers", report.layers},
                {"kv_heads", report.kv_heads},
                {"head_dim", report.head_dim},
                {"dtype", report.dtype},
                {"objective", rotations.objective},
                {"output_folded", a.fold_output},
                {"copied", report.copied},
                {"left", report.left}});
  }
  return 0;
}

}  // namespace

void add_artifact_options(CLI::App& app, ArtifactArguments& a) {
  std::string targets;
  for (const auto& target : conversion_targets())
    targets += (targets.empty() ? "" : ", ") + std::string(target.name);
  auto* convert = app.add_flag("--convert", a.convert,
                               "Turn the input files into the output instead of fitting (--list-conversions)")
                      ->group("Artifacts");
  app.add_option("--to", a.to, "What to write, where the output's name does not say it: " + targets)
      ->needs(convert)
      ->group("Artifacts");
  app.add_option("--base", a.base, "Model that GGUF rotations are added to; the output is a copy")
      ->type_name("MODEL.gguf")
      ->needs(convert)
      ->group("Artifacts");
  app.add_option("--rotary-order", a.rotary_order,
                 "Order of the keys that the engine caches, for an architecture that is not known")
      ->check(CLI::IsMember({"same", "interleaved"}))
      ->needs(convert)
      ->group("Artifacts");
  app.add_option("--kv-heads", a.kv_heads, "KV heads of a layer, for --to v2 from one rotation a layer")
      ->check(CLI::Range(1, 1024))
      ->needs(convert)
      ->group("Artifacts");
  app.add_option("--layer-ids", a.layer_ids,
                 "Global ids of the layers of a codebook.pt, which counts them from 0")
      ->delimiter(',')
      ->needs(convert)
      ->group("Artifacts");
  auto* absorb =
      app.add_option("--absorb-v", a.absorb_model,
                     "Write a copy of this checkpoint whose V projections are rotated by the input")
          ->type_name("MODEL_DIR")
          ->excludes(convert)
          ->group("Artifacts");
  app.add_flag("--fold-output", a.fold_output,
               "Undo the rotation in o_proj too: no engine needs to know of it")
      ->needs(absorb)
      ->group("Artifacts");
}

bool wanted(const ArtifactArguments& a) {
  return a.convert || !a.absorb_model.empty();
}

int run_artifact_command(const ArtifactArguments& a, const std::vector<fs::path>& inputs,
                         const fs::path& output, bool json, const Common& common) {
  if (output.empty()) throw invalid("-o is required: the file or directory to write");
  return a.convert ? convert_command(a, inputs, output, json, common)
                   : absorb_command(a, inputs, output, json, common);
}

}  // namespace oscar::cli
