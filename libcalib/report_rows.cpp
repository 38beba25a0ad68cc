#include "libcalib/report_rows.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "libcalib/report.h"

namespace oscar {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& json) {  // what is not finite was written as null; of the diagnostics, only an SNR
                                   // can be infinite
  return json.is_null() ? INFINITY : json.get<double>();
}

LayerDiagnostics read_diagnostics(const Json& json) {
  LayerDiagnostics d;
  d.layer = json.value("layer", -1);
  for (const auto& info : diagnostic_table()) d.*info.field = number(json.at(std::string(info.name)));
  const auto list = [&](const char* name, std::vector<double>& values) {
    for (const auto& value : json.value(name, Json::array())) values.push_back(number(value));
  };
  list("head_kl", d.head_kl);
  list("head_output_error", d.head_output_error);
  list("bucket_kl", d.bucket_kl);
  list("bucket_output_error", d.bucket_output_error);
  return d;
}

EndToEndFigures read_figures(const Json& json) {
  const auto or_nan = [&](const char* name) {
    return json.at(name).is_null() ? NAN : json.at(name).get<double>();
  };
  return {or_nan("perplexity"), or_nan("token_kl"), or_nan("top1")};
}
EndToEndResult read_end_to_end(const Json& json) {
  EndToEndResult result{read_figures(json), {}};
  for (const auto& bucket : json.at("buckets")) {
    result.buckets.push_back(
        {bucket.at("first"), bucket.at("last"), bucket.at("count"), read_figures(bucket)});
  }
  return result;
}

RowReport read_row(const Json& json) {
  RowReport row{.name = json.at("name"), .storage = json.at("storage").get<std::vector<std::string>>()};
  for (auto [side, body] : {std::pair{'k', &row.k}, {'v', &row.v}}) {
    const auto at = [&](const char* name) { return json.at(std::string(name) + side); };
    *body = {at("codec_"), at("objective_"), at("groups_"), at("clip_"), at("bits_")};
  }
  row.mean = read_diagnostics(json.at("mean"));
  for (const auto& layer : json.at("layers")) row.layers.push_back(read_diagnostics(layer));
  if (json.contains("end_to_end")) row.end_to_end = read_end_to_end(json["end_to_end"]);
  if (json.contains("windows")) row.windows = Windows{json["windows"]["sink"], json["windows"]["recent"]};
  if (json.contains("generation")) {
    const Json& g = json["generation"];
    row.generation = GenerationAgreement{g.at("prompt"), g.at("count"), g.at("agreement"),
                                         g.at("divergence").get<std::vector<int64_t>>()};
  }
  return row;
}

}  // namespace

KeptRows read_kept_rows(const std::filesystem::path& path) {
  KeptRows kept;
  if (path.empty() || !std::filesystem::exists(path)) return kept;
  try {
    const Json json = Json::parse(read_text(path));
    if (json.at("tool_version") != OSCAR_VERSION) return {};
    for (const auto& row : json.at("rows")) kept.report.rows.push_back(read_row(row));
    kept.identities = json.at("identities").get<std::vector<std::string>>();
    if (json.contains("exact")) kept.report.exact = read_end_to_end(json["exact"]);
    if (kept.identities.size() != kept.report.rows.size()) return {};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return kept;
}

void write_kept_rows(const std::filesystem::path& path, const KeptRows& rows) {
  Json json = to_json(rows.report);
  json["identities"] = rows.identities;
  write_file(path, json.dump() + '\n');
}

}  // namespace oscar
