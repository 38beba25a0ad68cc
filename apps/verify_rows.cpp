#include "apps/verify_rows.h"

#include "formats/sha256.h"
#include "libcalib/fit.h"
#include "libcalib/verify_rows.h"

namespace oscar::cli {
namespace {

// --clip RK,RV holds for every row; a clip.json was found for the rotations, the baselines keep the published
// constants.
struct Clip {
  ClipChoice rotations;
  double baseline_k = kHandRatioK, baseline_v = kHandRatioV;
  bool searched = false;  // a clip.json
};
Clip read_clip_option(const RowChoice& choice, const std::vector<int>& probes) {
  Clip clip;
  clip.rotations.model_k = kHandRatioK;
  clip.rotations.model_v = kHandRatioV;
  if (choice.clip.empty() && choice.clip_by_layer)
    throw invalid("--clip-by-layer needs --clip and the clip.json of oscar-clip");
  if (choice.clip.empty()) return clip;
  const auto parts = split(choice.clip, ',');
  const auto k = parse_number(parts[0]);
  const auto v = parts.size() == 2 ? parse_number(parts[1]) : std::nullopt;
  if (choice.clip_by_layer && k && v)
    throw invalid("--clip-by-layer needs the clip.json of oscar-clip, not --clip {}", choice.clip);
  if (k && v) {
    for (const double ratio : {*k, *v}) {
      if (!(ratio >= 0 && ratio <= 1))
        throw invalid("--clip {}: expected two ratios from 0 (off) to 1", choice.clip);
    }
    clip.baseline_k = clip.rotations.model_k = *k;
    clip.baseline_v = clip.rotations.model_v = *v;
    return clip;
  }
  if (k)
    throw invalid("--clip {}: expected two ratios, RK,RV, or the clip.json of oscar-clip", choice.clip);
  if (choice.rotations.empty())
    throw invalid("--clip {}: its ratios are of rotations, and no --rotations are given", choice.clip);
  clip.rotations = read_clip(choice.clip);
  clip.searched = true;
  for (const int probe : clip.rotations.probes) {
    if (std::ranges::find(probes, probe) == probes.end()) continue;
    note(choice.quiet,
         fmt::format("note: {} was searched on probe {} too: the figures are slightly favourable",
                     choice.clip, probe));
    break;
  }
  return clip;
}

// Everything of a made cache that its figures depend on.
std::string digest_of(const CacheCodes& codes) {
  Sha256 sha;
  const auto add = [&](const auto* values, auto count) {
    sha.update(std::string_view(reinterpret_cast<const char*>(values),
                                sizeof(*values) * static_cast<size_t>(count)));
  };
  for (const SideCodes* side : {&codes.k, &codes.v}) {
    for (const auto& [id, heads] : side->layers) {
      for (const auto& head : heads) {
        sha.update(fmt::format("{} {} {} {} {}", id, head.codec->name, head.options.groups, head.options.clip,
                               head.options.seed));
        for (const Matrix* m : {&head.transform.forward, &head.transform.inverse}) add(m->data(), m->size());
        add(head.transform.mean.data(), head.transform.mean.size());
        if (!head.options.codebook) continue;
        for (const auto& group : head.options.codebook->groups) add(group.words.data(), group.words.size());
      }
    }
  }
  return sha.hex();
}

VerificationRow ready(CacheCodes codes, const std::vector<LayerShape>& shapes) {
  check_codes(codes.k, Side::K, shapes, codes.name);
  check_codes(codes.v, Side::V, shapes, codes.name);
  auto shared = std::make_shared<const CacheCodes>(std::move(codes));
  return {shared->name, digest_of(*shared), [shared] { return *shared; }};
}

// What fits need, made once when the first method asks.
class Fits {
 public:
  Fits(const RowChoice& choice, const StatisticsReader& statistics)
      : paths_(statistics.paths()), device_(choice.device), threads_(choice.threads), quiet_(choice.quiet) {}
  CacheCodes fit(const Method& method) {
    if (!input_) input_ = FitInput{read_merged(paths_, threads_).layers, row_reader(paths_)};
    if (method.trains()) open_search();
    return oscar::fit(*input_, method, {.threads = threads_, .search = search_ ? *search_ : cpu_search()})
        .codes;
  }

 private:
  void open_search() {
    if (opened_) return;
    opened_ = true;
    try {
      search_ = open_codeword_search(device_);
      if (search_) note_slower(quiet_, search_->slower());
    } catch (const std::runtime_error& error) {
      note(quiet_, fmt::format("note: codebooks are trained on the CPU: {}", error.what()));
    }
  }
  std::vector<std::filesystem::path> paths_;
  std::string device_;
  int threads_;
  bool quiet_, opened_ = false;
  std::optional<FitInput> input_;
  std::unique_ptr<CodewordSearch> search_;
};

VerificationRow fitted(const std::string& name, const Method& method, const std::shared_ptr<Fits>& fits,
                       bool optional) {
  return {
      .name = name, .identity = method.name, .make = [=] { return fits->fit(method); }, .optional = optional};
}

std::vector<std::string> swept(const std::string& specification, const std::string& sweep) {
  const Method method = parse_method(specification);
  const auto takes = [&](std::string_view option) {
    return std::ranges::any_of(honoured_options(method.k),
                               [&](const auto& o) { return o.first == option; }) ||
           std::ranges::any_of(honoured_options(method.v), [&](const auto& o) { return o.first == option; });
  };
  std::vector<std::string> values;
  std::string option;
  if (sweep == "bits" && takes("shape")) {
    option = "shape";
    values = {"16x8", "8x8", "4x6", "4x8", "4x10"};
  } else if (sweep == "bits" && takes("bits")) {
    option = "bits";
    values = {"1", "2", "3"};
  } else if (sweep == "clip" && takes("clip")) {
    option = "clip";
    values = {"0", "0.8", "0.84", "0.88", "0.9", "0.92", "0.94", "0.96", "0.98"};
  }
  if (option.empty())
    throw invalid("--sweep {}: method '{}' has no such option to sweep over (--list-methods of oscar-fit)",
                  sweep, specification);
  if (specification.find('/') != std::string::npos)
    throw invalid("--sweep {}: '{}' is two methods; sweep over one", sweep, specification);
  for (auto& value : values) value = fmt::format("{}:{}={}", specification, option, value);
  return values;
}

std::vector<Windows> parse_windows(const std::string& text) {
  std::vector<Windows> list;
  for (const auto& part : split(text, ',')) {
    const auto sides = split(part, '/');
    if (sides.size() != 2) throw invalid("--sweep-windows: expected SINK/RECENT,…, found '{}'", part);
    list.push_back(
        checked({parse_integer("--sweep-windows", sides[0]), parse_integer("--sweep-windows", sides[1])}));
  }
  return list;
}

struct AskedMethod {
  std::string text;
  bool named;  // false: one of all
};
// `all` stands for the methods that are not named beside it.
std::vector<AskedMethod> asked_methods(const std::vector<std::string>& asked) {
  std::vector<AskedMethod> methods;
  for (const auto& text : asked) {
    if (text != "all") {
      methods.push_back({text, true});
      continue;
    }
    for (const auto& method : method_table()) {
      if (std::ranges::find(asked, method.name) == asked.end())
        methods.push_back({std::string(method.name), false});
    }
  }
  return methods;
}

// --codec, --groups and --clip are of the baselines and of rotation files: codes and methods bring their own.
void check_cache_options(const RowChoice& choice, const Clip& clip, bool baselines,
                         const std::vector<NamedRotations>& rotations) {
  const bool files = std::ranges::any_of(rotations, [](const auto& named) { return !named.codes; });
  const bool scalar = baselines || files;
  for (const auto& [option, given, used] :
       {std::tuple{"--codec", choice.measure.codec.has_value(), scalar},
        {"--groups", choice.measure.groups.has_value(), scalar},
        {"--clip", !choice.clip.empty(), clip.searched ? files : scalar}}) {
    if (given && !used)
      throw invalid(
          "{}: no row would use it: codes and methods bring their own, METHOD:option=value "
          "(--list-methods of oscar-fit)",
          option);
  }
}

// NAME=SPECIFICATION, or the specification alone. The equals sign of an option comes after a colon.
std::pair<std::string, std::string> named_method(const std::string& text) {
  const auto equals = text.find('='), colon = text.find_first_of(":/");
  if (equals == std::string::npos || (colon != std::string::npos && colon < equals)) return {text, text};
  if (equals == 0) throw invalid("--methods {}: expected [NAME=]METHOD, found an empty name", text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

Rows choose_rows(const RowChoice& choice, const StatisticsReader& statistics, const VerifyOptions& asked) {
  const auto clip = read_clip_option(choice, asked.probes);
  const auto shapes = select_layers(statistics.header(), asked.layers);
  const ScalarRows scalar{statistics.header().layers, &find_codec(choice.measure.codec.value_or(kCodec)),
                          choice.measure.groups.value_or(1)};
  Rows result;
  std::vector<NamedRotations> rotations;
  for (const auto& text : choice.rotations) rotations.push_back(read_named_rotations(text));
  const bool baselines = !choice.no_baselines && choice.sweep.empty();
  check_cache_options(choice, clip, baselines, rotations);
  if (!choice.sweep_windows.empty() && choice.sweep != "windows")
    throw invalid("--sweep-windows {}: is of --sweep windows", choice.sweep_windows);
  const auto has = [&](const std::string& name) {
    return std::ranges::find(result.rows, name, &VerificationRow::name) != result.rows.end();
  };
  const bool beside = !choice.rotations.empty() || !choice.methods.empty();  // of what was asked for
  if (baselines) {
    try {
      for (auto& row : scalar.baselines(clip.baseline_k, clip.baseline_v)) {
        result.rows.push_back(ready(std::move(row), shapes));
        result.rows.back().optional = beside;
      }
    } catch (const std::invalid_argument& error) {
      if (!beside) throw;
      result.rows.clear();
      note(choice.quiet, fmt::format("note: the baselines are left out: {}", error.what()));
    }
  }
  for (auto& named : rotations) {
    if (named.codes) {
      result.rows.push_back(ready(std::move(*named.codes), shapes));
    } else {
      const auto& found = clip.rotations;
      const bool own = choice.clip_by_layer;
      result.rows.push_back(
          ready(scalar.row(named.name, &named.pair.k, &named.pair.v, found.model_k, found.model_v,
                           own ? found.k : decltype(found.k){}, own ? found.v : decltype(found.v){}),
                shapes));
    }
    result.bounded.push_back(result.rows.back().name);
  }

  const auto fits = std::make_shared<Fits>(choice, statistics);
  for (const auto& [text, is_named] : asked_methods(choice.methods)) {
    const auto [name, specification] = named_method(text);
    if (!is_named && has(name)) continue;  // a baseline
    std::vector<std::string> specifications{specification};
    if (choice.sweep == "bits" || choice.sweep == "clip") specifications = swept(specification, choice.sweep);
    for (const auto& one : specifications) {
      const Method method = parse_method(one);
      const std::string label = one == specification ? name : name + one.substr(specification.size());
      auto row = fitted(label, method, fits, !is_named);
      for (const SideMethod* side : {&method.k, &method.v}) {
        const MethodInfo& info = *side->method;
        if (std::ranges::find(result.notes, info.name, &MethodNote::name) == result.notes.end()) {
          result.notes.push_back({std::string(info.name), std::string(info.source), std::string(info.stores),
                                  needs_text(parse_method(info.name).needs())});
        }
      }
      result.bounded.push_back(label);
      result.rows.push_back(std::move(row));
    }
  }
  if (choice.sweep == "windows") {
    std::vector<VerificationRow> expanded;
    std::vector<std::string> names;
    for (const auto& row : result.rows) {
      for (const Windows& windows :
           parse_windows(choice.sweep_windows.empty() ? kSweepWindows : choice.sweep_windows)) {
        expanded.push_back(row);
        expanded.back().windows = windows;
        expanded.back().name += fmt::format(" @ {}/{}", windows.sink, windows.recent);
        names.push_back(expanded.back().name);
      }
    }
    result.rows = std::move(expanded);
    result.bounded = std::move(names);
  }
  if (result.rows.empty() && choice.sweep.empty())
    throw invalid("--no-baselines leaves no row to measure: name some with --rotations or --methods");
  if (result.rows.empty()) throw invalid("--sweep {}: name what to sweep with --methods", choice.sweep);
  if (result.bounded.empty()) {
    for (const auto& row : result.rows) result.bounded.push_back(row.name);
  }
  return result;
}

}  // namespace oscar::cli
