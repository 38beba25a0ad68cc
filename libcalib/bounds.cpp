#include "libcalib/bounds.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "libcalib/report.h"

namespace oscar {

static constexpr std::pair<const char*, double LayerDiagnostics::*> kBounded[] = {
    {"attention_kl", &LayerDiagnostics::attention_kl},
    {"output_error", &LayerDiagnostics::output_error},
};

std::vector<std::string> exceeded(const VerifyReport& report, const std::vector<std::string>& rows,
                                  const Bounds& bounds) {
  std::vector<std::string> lines;
  for (const auto& name : rows) {
    const auto row = std::ranges::find(report.rows, name, &RowReport::name);
    if (row == report.rows.end()) throw invalid("bounds on row '{}': the report has no such row", name);
    for (const auto& [what, field] : kBounded) {
      const auto& bound = field == &LayerDiagnostics::attention_kl ? bounds.max_kl : bounds.max_output_error;
      if (!bound) continue;
      const auto beyond = [&](const auto& layer) { return !(layer.*field <= *bound); };  // nan is
      const auto above = std::ranges::count_if(row->layers, beyond);
      if (above == 0) continue;
      auto worst =
          std::ranges::find_if(row->layers, [&](const auto& layer) { return std::isnan(layer.*field); });
      if (worst == row->layers.end()) worst = std::ranges::max_element(row->layers, {}, field);
      lines.push_back(fmt::format("row '{}', layer {}: {} {:.6g} exceeds the bound {} ({} of {} layers do)",
                                  name, worst->layer, what, (*worst).*field, *bound, above,
                                  row->layers.size()));
    }
  }
  return lines;
}

namespace {

using Json = nlohmann::ordered_json;

void check_same(const std::filesystem::path& path, const char* what, const Json& before, const Json& now) {
  if (before == now) return;
  throw invalid("{}: {} of the baseline {}, of this run {}: the figures cannot be compared", path.string(),
                what, before.dump(), now.dump());
}

const Json* find_entry(const Json& list, const char* key, const Json& value) {
  for (const auto& entry : list) {
    if (entry.at(key) == value) return &entry;
  }
  return nullptr;
}

std::vector<std::string> compare_row(const RowReport& row, const Json& before, double tolerance) {
  std::vector<std::string> lines;
  const auto check = [&](const std::string& place, const LayerDiagnostics& now, const Json& then) {
    for (const auto& [what, field] : kBounded) {
      const double old_value = then.at(what).get<double>(), value = now.*field;
      if (value <= old_value * (1 + tolerance)) continue;
      lines.push_back(fmt::format(
          "row '{}', {}: {} was {:.6g} in the baseline, is {:.6g} (+{:.2f} %, allowed {:.2f} %)", row.name,
          place, what, old_value, value, 100 * (value / old_value - 1), 100 * tolerance));
    }
  };
  check("mean", row.mean, before.at("mean"));
  for (const auto& layer : row.layers) {
    if (const auto* then = find_entry(before.at("layers"), "layer", layer.layer)) {
      check(fmt::format("layer {}", layer.layer), layer, *then);
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> regressions(const VerifyReport& report, const std::filesystem::path& baseline,
                                     double tolerance) {
  const auto json = read_report(baseline, "oscar-verify/1");
  try {
    check_same(baseline, "model digest", json.at("provenance").at("model_digest"),
               report.provenance.model_digest);
    check_same(baseline, "windows", json.at("windows"),
               {{"sink", report.windows.sink}, {"recent", report.windows.recent}});
    check_same(baseline, "first position", json.at("first_query"), report.first_query);
    check_same(baseline, "probes", json.at("probes"), report.probes);
    check_same(baseline, "probe lengths", json.at("probe_tokens"), report.probe_tokens);
    std::vector<std::string> lines;
    bool compared = false;
    for (const auto& row : report.rows) {
      const auto* before = find_entry(json.at("rows"), "name", row.name);
      if (!before) continue;
      compared = true;
      const auto found = compare_row(row, *before, tolerance);
      lines.insert(lines.end(), found.begin(), found.end());
    }
    if (!compared) {
      std::vector<std::string> names;
      for (const auto& row : json.at("rows")) names.push_back(row.at("name"));
      throw invalid("{}: no row of this run has a name of the baseline's, {}: nothing can be compared",
                    baseline.string(), fmt::join(names, ", "));
    }
    return lines;
  } catch (const Json::exception& error) {
    throw failure("{}: damaged report: {}", baseline.string(), error.what());
  }
}

}  // namespace oscar
