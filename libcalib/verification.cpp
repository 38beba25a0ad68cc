#include "libcalib/verification.h"

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "libcalib/report_rows.h"
#include "libcalib/setup.h"
#include "libcalib/token_runner.h"

namespace oscar {
namespace {

// Everything of a run that a kept row's figures depend on, besides the row itself.
std::string run_identity(const StatisticsReader& statistics, const VerificationOptions& o,
                         const Windows& windows) {
  const auto& p = statistics.header().provenance;
  const bool tokens = !o.model.empty();
  return fmt::format(
      "{} {} {} {} {} probes {} layers {} from {} windows {}/{} tokens {} generate {}+{} on {} and {}",
      p.model_digest, p.text_digest, p.command, p.dtype, p.tokens, fmt::join(o.attention.probes, ","),
      fmt::join(o.attention.layers, ","), o.attention.first_query, windows.sink, windows.recent,
      tokens ? fmt::format("{}", fmt::join(o.token_probes, ",")) : "", o.prompt, o.generate,
      o.attention.device.name, o.model_device);
}

void check_names(const std::vector<VerificationRow>& rows) {
  if (rows.empty()) throw invalid("verify: no rows: expected at least one set-up to measure");
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (rows[r].name == rows[other].name)
        throw invalid("two rows are called '{}': give them names of their own, NAME=…", rows[r].name);
    }
  }
}

// One row's parts as steps of a run whose rows take about the same time.
class Steps {
 public:
  Steps(int64_t parts, const std::function<void(const VerificationStep&)>& progress)
      : total_(parts * kStep), progress_(progress) {}
  void at(int64_t parts) { done_ = parts * kStep; }
  std::function<void(int64_t, int64_t)> next(const std::string& what) {
    const int64_t base = done_;
    done_ += kStep;
    return [this, what, base](int64_t done, int64_t of) {
      if (progress_) progress_({what, base + done * kStep / std::max<int64_t>(of, 1), total_});
    };
  }

 private:
  static constexpr int64_t kStep = 1000;
  int64_t done_ = 0, total_;
  const std::function<void(const VerificationStep&)>& progress_;
};

}  // namespace

VerifyReport run_verification(const StatisticsReader& statistics, const std::vector<VerificationRow>& rows,
                              const VerificationOptions& options,
                              const std::function<void(const VerificationStep&)>& progress,
                              const std::function<void(const std::string&)>& note) {
  check_names(rows);
  const auto say = [&](const std::string& text) {
    if (note && !text.empty()) note(text);
  };
  std::unique_ptr<TokenRunner> tokens;
  if (!options.model.empty()) {
    tokens = open_token_runner(statistics, options.token_probes, options.attention.first_query, options.model,
                               options.model_device, options.threads);
  }
  const int64_t parts = 1 + (tokens != nullptr) + (options.generate > 0);
  Steps steps(static_cast<int64_t>(rows.size()) * parts, progress);

  const KeptRows before = read_kept_rows(options.kept);
  KeptRows kept{{}, report_frame(statistics, options.attention)};
  VerifyReport& report = kept.report;
  std::set<std::string> noted;  // windows that had their note
  std::string left_out;         // why the first of those was
  // Makes a row's codes and measures all that was asked for.
  const auto measure = [&](const VerificationRow& row, const VerifyOptions& attention) {
    const Windows& windows = attention.windows;
    CacheCodes codes = row.make();
    codes.name = row.name;
    RowReport measured = verify(statistics, {codes}, attention, steps.next(row.name + ": attention")).rows[0];
    say(unserved_windows(codes, windows));
    if (noted.insert(fmt::format("{}/{}", windows.sink, windows.recent)).second)
      say(unfitted_windows(statistics.header().windows, windows));
    measured.windows = row.windows;
    if (tokens) {
      const auto moved = steps.next(row.name + ": end to end");
      if (!report.exact) report.exact = tokens->exact(windows, moved);
      measured.end_to_end = tokens->run(codes, windows, moved);
    }
    if (options.generate > 0) {
      measured.generation = tokens->generate(codes, windows, options.prompt, options.generate,
                                             steps.next(row.name + ": generating"));
    }
    return measured;
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    const VerificationRow& row = rows[r];
    steps.at(static_cast<int64_t>(r) * parts);
    auto attention = options.attention;
    attention.windows = row.windows.value_or(attention.windows);
    const Windows& windows = attention.windows;
    const std::string identity =
        row.name + '\n' + row.identity + '\n' + run_identity(statistics, options, windows);
    const auto found = std::ranges::find(before.identities, identity);
    if (found != before.identities.end()) {
      say(fmt::format("{}: kept from the interrupted run", row.name));
      report.rows.push_back(before.report.rows[static_cast<size_t>(found - before.identities.begin())]);
      report.exact = before.report.exact;
    } else {
      const auto leave_out = [&](const std::exception& error) {
        const std::string why = fmt::format("{} is left out: {}", row.name, error.what());
        if (left_out.empty()) left_out = why;
        say(why);
      };
      try {
        report.rows.push_back(measure(row, attention));
      } catch (const std::invalid_argument& error) {
        if (!row.optional) throw;
        leave_out(error);
        continue;
      } catch (const std::runtime_error& error) {
        if (!row.optional) throw;
        leave_out(error);
        continue;
      }
    }
    kept.identities.push_back(identity);
    report.path = path_of(report.rows, options.attention.device);
    if (tokens && tokens->place() != "cpu") report.path += ", the model on " + tokens->place();
    if (!options.kept.empty()) write_kept_rows(options.kept, kept);
  }
  if (report.rows.empty()) throw invalid("no row could be measured: {}", left_out);
  return report;
}

}  // namespace oscar
