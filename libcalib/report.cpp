// Reports as JSON: ordered keys, shortest numbers that read back to the same double, no times, so the same
// inputs give the same bytes.
#include "libcalib/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "libcalib/artifacts/provenance_fields.h"

namespace oscar {

using Json = nlohmann::ordered_json;

Json to_json(const Provenance& provenance) {
  Json json;
  for (const auto& text : kProvenanceTexts) {
    if (!text.place) json[text.name] = provenance.*text.value;
  }
  json["layers_total"] = provenance.layers_total;
  json["tokens"] = provenance.tokens;
  json["sequence_lengths"] = provenance.sequence_lengths;
  return json;
}

static Json to_json(const Windows& windows) {
  return {{"sink", windows.sink}, {"recent", windows.recent}};
}

// JSON has no infinity: the SNR of exact codes is null.
static Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

static Json numbers(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push_back(number(value));
  return json;
}

static void add_diagnostics(Json& json, const LayerDiagnostics& diagnostics) {
  for (const auto& info : diagnostic_table()) json[std::string(info.name)] = number(diagnostics.*info.field);
  json["bucket_kl"] = numbers(diagnostics.bucket_kl);
  json["bucket_output_error"] = numbers(diagnostics.bucket_output_error);
}

static Json to_json(const EndToEndFigures& figures) {
  return {{"perplexity", number(figures.perplexity)},
          {"token_kl", number(figures.token_kl)},
          {"top1", number(figures.top1)}};
}

static Json to_json(const EndToEndResult& result) {
  Json json = to_json(result.mean);
  json["buckets"] = Json::array();
  for (const auto& bucket : result.buckets) {
    Json body{{"first", bucket.first}, {"last", bucket.last}, {"count", bucket.count}};
    body.update(to_json(bucket.figures));
    json["buckets"].push_back(std::move(body));
  }
  return json;
}

Json to_json(const VerifyReport& report) {
  Json json;
  json["schema"] = "oscar-verify/1";
  json["tool_version"] = OSCAR_VERSION;
  json["path"] = report.path;
  json["windows"] = to_json(report.windows);
  json["first_query"] = report.first_query;
  json["probes"] = report.probes;
  json["probe_tokens"] = report.probe_tokens;
  json["buckets"] = Json::array();
  for (const auto& bucket : report.buckets)
    json["buckets"].push_back({{"first", bucket.first}, {"last", bucket.last}});
  json["provenance"] = to_json(report.provenance);
  if (report.exact) json["exact"] = to_json(*report.exact);
  json["rows"] = Json::array();
  for (const auto& row : report.rows) {
    Json entry;
    entry["name"] = row.name;
    entry["storage"] = row.storage;
    if (row.windows) entry["windows"] = to_json(*row.windows);
    for (const auto& [side, body] : {std::pair{'k', &row.k}, {'v', &row.v}}) {
      entry[fmt::format("codec_{}", side)] = body->codec;
      entry[fmt::format("objective_{}", side)] = body->objective;
      entry[fmt::format("groups_{}", side)] = body->groups;
      entry[fmt::format("clip_{}", side)] = body->clip;
      entry[fmt::format("bits_{}", side)] = body->bits;
    }
    entry["mean"] = Json::object();
    add_diagnostics(entry["mean"], row.mean);
    entry["layers"] = Json::array();
    for (const auto& layer : row.layers) {
      Json body;
      body["layer"] = layer.layer;
      add_diagnostics(body, layer);
      body["head_kl"] = numbers(layer.head_kl);
      body["head_output_error"] = numbers(layer.head_output_error);
      entry["layers"].push_back(std::move(body));
    }
    if (row.end_to_end) entry["end_to_end"] = to_json(*row.end_to_end);
    if (row.generation) {
      entry["generation"] = {{"prompt", row.generation->prompt},
                             {"count", row.generation->count},
                             {"agreement", row.generation->agreement},
                             {"divergence", row.generation->divergence}};
    }
    json["rows"].push_back(std::move(entry));
  }
  return json;
}

static void add_curve(Json& json, const ClipCurve& curve) {
  json["ratio"] = curve.best_ratio;
  json["loss"] = curve.best_loss;
  json["hand_ratio"] = curve.hand_ratio;
  json["hand_loss"] = curve.hand_loss;
  json["curve"] = Json{{"ratio", curve.ratio}, {"loss", curve.loss}};
}

static Json side_json(const std::string& objective, const char* loss, const ClipCurve& model,
                      const std::map<int, ClipCurve>& layers) {
  Json json;
  json["objective"] = objective;
  json["loss_is"] = loss;
  add_curve(json, model);
  json["layers"] = Json::array();
  for (const auto& [layer, curve] : layers) {
    Json body;
    body["layer"] = layer;
    add_curve(body, curve);
    json["layers"].push_back(std::move(body));
  }
  return json;
}

Json to_json(const ClipReport& report) {
  Json json;
  json["schema"] = "oscar-clip/1";
  json["tool_version"] = OSCAR_VERSION;
  json["codec"] = report.codec;
  json["groups"] = report.groups;
  json["windows"] = to_json(report.options.windows);
  json["first_query"] = report.options.first_query;
  json["queries"] = report.options.queries;
  json["seed"] = report.options.seed;
  json["probes"] = report.options.probes;
  json["provenance"] = to_json(report.provenance);
  Json environment = Json::object(), flags = Json::array();
  for (const auto& [name, value] : serving_environment(report)) environment[name] = value;
  for (const auto& flag : serving_flags(report)) flags.push_back(flag);
  json["serving"] = Json{{"environment", environment}, {"flags", flags}};
  json["notes"] = report.notes;
  json["k"] =
      side_json(report.objective_k, "mean KL(p || p^) in nats, exact values", report.model_k, report.k);
  json["v"] =
      side_json(report.objective_v, "||S(V - V^)||^2 / ||SV||^2, exact keys", report.model_v, report.v);
  return json;
}

Json to_json(const Comparison& comparison, double tolerance) {
  Json json;
  json["schema"] = "oscar-compare/1";
  json["tool_version"] = OSCAR_VERSION;
  json["equal"] = comparison.equal(tolerance);
  json["tolerance"] = tolerance;
  json["remarks"] = comparison.remarks;
  json["only_a"] = comparison.only_a;
  json["only_b"] = comparison.only_b;
  json["layers"] = Json::array();
  for (const auto& layer : comparison.layers) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"covariance", number(layer.covariance)},
                              {"subspace", layer.subspace},
                              {"rotation", layer.rotation}});
  }
  return json;
}

Json read_report(const std::filesystem::path& path, std::string_view schema) {
  auto json = Json::parse(read_text(path), nullptr, false);
  std::string found = "no JSON";
  if (!json.is_discarded()) {
    const auto entry = json.is_object() ? json.find("schema") : json.end();
    found = entry != json.end() && entry->is_string() ? entry->get<std::string>() : "none";
  }
  if (found != schema) throw failure("{}: expected schema {}, found {}", path.string(), schema, found);
  return json;
}

ClipChoice read_clip(const std::filesystem::path& path) {
  const auto json = read_report(path, "oscar-clip/1");
  const auto side = [&](const char* name, std::string& objective, double& model,
                        std::map<int, double>& layers) {
    const auto& body = json.at(name);
    objective = body.at("objective").get<std::string>();
    model = body.at("ratio").get<double>();
    for (const auto& layer : body.at("layers"))
      layers[layer.at("layer").get<int>()] = layer.at("ratio").get<double>();
  };
  ClipChoice choice;
  try {
    side("k", choice.objective_k, choice.model_k, choice.k);
    side("v", choice.objective_v, choice.model_v, choice.v);
    choice.probes = json.at("probes").get<std::vector<int>>();
    choice.model_digest = json.at("provenance").at("model_digest").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    throw failure("{}: damaged clip report: {}", path.string(), error.what());
  }
  std::vector<double> ratios = {choice.model_k, choice.model_v};
  for (const auto* layers : {&choice.k, &choice.v}) {
    for (const auto& [layer, ratio] : *layers) ratios.push_back(ratio);
  }
  for (const double ratio : ratios) {
    if (!(ratio >= 0 && ratio <= 1))
      throw failure("{}: clip ratio {}: expected 0 to 1", path.string(), ratio);
  }
  return choice;
}

static ClipCurve read_curve(const Json& json) {
  ClipCurve curve;
  json.at("curve").at("ratio").get_to(curve.ratio);
  json.at("curve").at("loss").get_to(curve.loss);
  json.at("ratio").get_to(curve.best_ratio);
  json.at("loss").get_to(curve.best_loss);
  json.at("hand_ratio").get_to(curve.hand_ratio);
  json.at("hand_loss").get_to(curve.hand_loss);
  return curve;
}

ClipReport read_clip_report(const std::filesystem::path& path) {
  const auto json = read_report(path, "oscar-clip/1");
  ClipReport report;
  try {
    json.at("codec").get_to(report.codec);
    json.at("groups").get_to(report.groups);
    json.at("probes").get_to(report.options.probes);
    json.at("first_query").get_to(report.options.first_query);
    json.at("queries").get_to(report.options.queries);
    json.at("seed").get_to(report.options.seed);
    json.at("windows").at("sink").get_to(report.options.windows.sink);
    json.at("windows").at("recent").get_to(report.options.windows.recent);
    json.at("notes").get_to(report.notes);
    json.at("provenance").at("model_name").get_to(report.provenance.model_name);
    json.at("provenance").at("model_digest").get_to(report.provenance.model_digest);
    const auto side = [&](const char* name, std::string& objective, ClipCurve& model,
                          std::map<int, ClipCurve>& layers) {
      const auto& body = json.at(name);
      body.at("objective").get_to(objective);
      model = read_curve(body);
      for (const auto& layer : body.at("layers")) layers[layer.at("layer").get<int>()] = read_curve(layer);
    };
    side("k", report.objective_k, report.model_k, report.k);
    side("v", report.objective_v, report.model_v, report.v);
  } catch (const nlohmann::json::exception& error) {
    throw failure("{}: damaged clip report: {}", path.string(), error.what());
  }
  return report;
}

}  // namespace oscar
