#include "libcalib/artifacts/manifest.h"

#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "libcalib/report.h"

namespace oscar {
namespace {

constexpr const char* kSchema = "oscar-rotations/1";
constexpr const char* kName = "manifest.json";

nlohmann::ordered_json check_json(const FitCheck& check) {
  return {{"layer", check.layer},
          {"side", side_name(check.side)},
          {"orthogonality", check.orthogonality},
          {"residual", check.residual},
          {"rank", check.rank},
          {"condition", check.condition},
          {"lemma1", check.lemma1},
          {"shared_loss", check.shared_loss},
          {"volume_spread", check.volume_spread},
          {"distortion", check.distortion},
          {"rows_per_word", check.rows_per_word}};
}

}  // namespace

static nlohmann::ordered_json side_json(const SideMethod& side, const SideCodes& codes) {
  nlohmann::ordered_json json = {{"method", side.method->name}, {"objective", codes.objective}};
  json["options"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : honoured_options(side)) json["options"][name] = value;
  json["codes"] = codec_names(codes);
  return json;
}

nlohmann::ordered_json manifest_json(const FitRecord& record, const std::vector<ManifestFile>& files) {
  const FitResult& result = record.result;
  nlohmann::ordered_json json;
  json["schema"] = kSchema;
  json["tool_version"] = OSCAR_VERSION;
  json["fit"] = {{"method", record.method.name},
                 {"k", side_json(record.method.k, result.codes.k)},
                 {"v", side_json(record.method.v, result.codes.v)},
                 {"allow_undersampled", record.allow_undersampled}};
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : files) {
    json["files"].push_back({{"name", file.name},
                             {"side", file.side},
                             {"format", file.format},
                             {"objective", file.objective},
                             {"sha256", file.sha256}});
  }
  json["checks"] = nlohmann::ordered_json::array();
  for (const FitCheck& check : result.checks) json["checks"].push_back(check_json(check));
  if (!result.plan.empty()) {
    auto& plan = json["plan"] = nlohmann::ordered_json::array();
    for (const PlanItem& item : result.plan) {
      plan.push_back({{"layer", item.layer},
                      {"side", side_name(item.side)},
                      {"head", item.head},
                      {"code", item.shape},
                      {"bits", item.bits},
                      {"predicted_loss", item.loss}});
    }
    json["uniform_predicted_loss"] = result.uniform_loss;
  }
  json["warnings"] = result.warnings;
  json["provenance"] = to_json(record.provenance);
  json["provenance"].erase("model_path");
  return json;
}

void write_manifest(const std::filesystem::path& directory, const FitRecord& record,
                    const std::vector<ManifestFile>& files) {
  write_file(directory / kName, manifest_json(record, files).dump(2) + "\n");
}

std::vector<ManifestFile> read_manifest(const std::filesystem::path& directory) {
  const auto path = directory / kName;
  if (!std::filesystem::exists(path)) return {};
  std::vector<ManifestFile> files;
  try {
    const auto json = nlohmann::json::parse(read_text(path));
    for (const auto& file : json.at("files")) {
      files.push_back(
          {file.at("name"), file.at("side"), file.at("format"), file.at("objective"), file.at("sha256")});
    }
  } catch (const nlohmann::json::exception& error) {
    throw failure("{}: expected a manifest of schema {}: {}", path.string(), kSchema, error.what());
  }
  return files;
}

}  // namespace oscar
