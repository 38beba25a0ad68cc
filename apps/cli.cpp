#include "apps/cli.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <new>
#include <thread>

#include "formats/error.h"
#include "formats/temporaries.h"

namespace oscar::cli {

namespace {
// Only what a signal handler may do: unlink the temporary files and leave.
void interrupted(int) {
  remove_temporaries();
  constexpr char text[] = "\ninterrupted\n";
  [[maybe_unused]] const auto ignored = write(2, text, sizeof text - 1);
  _exit(130);
}
}  // namespace

// An empty value is what a shell makes of a variable that is not set. No option means anything by it, and passed over
// it would leave out what was asked for.
static void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.empty()) throw invalid("{}: expected a value, found an empty one", option->get_name());
    }
  }
}

void add_common(CLI::App& app, Common& common, const std::string& examples) {
  app.set_version_flag("--version", std::string("oscar-calib " OSCAR_VERSION));
  app.add_flag("-q,--quiet", common.quiet, "No progress and no notes on stderr; errors stay")
      ->group("Output");
  app.add_option("--threads", common.threads, "CPU threads; 0: every core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group("Run");
  app.footer("Examples:\n" + examples);
  app.get_formatter()->column_width(36);
}

int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  signal(SIGINT, interrupted);
  signal(SIGTERM, interrupted);
  const auto fail = [&](int code, const std::string& message) {
    std::cout.flush();
    std::cerr << app.get_name() << ": " << message << '\n';
    return code;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(2, fmt::format("{}\nRun with --help for the options.", error.what()));
  }
  try {
    refuse_empty_values(app);
    const int code = body();
    if (!std::cout.flush())
      return fail(3, "standard output: write failed (is the disk full, or the reader gone?)");
    return code;
  } catch (const Wanting& error) {
    return fail(1, error.what());
  } catch (const std::invalid_argument& error) {
    return fail(2, error.what());
  } catch (const std::bad_alloc&) {
    return fail(3, "out of memory: use fewer or shorter sequences, or fewer threads");
  } catch (const std::exception& error) {
    return fail(3, error.what());
  }
}

void leave(int code) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  _exit(code);
}

using Clock = std::chrono::steady_clock;

struct Progress::State {
  std::string label, unit;
  bool quiet, terminal;
  Clock::time_point start = Clock::now(), shown{};
  std::string last_step;
  bool open_line = false;
};

Progress::Progress(std::string label, std::string unit, bool quiet)
    : state_(new State{.label = std::move(label),
                       .unit = std::move(unit),
                       .quiet = quiet,
                       .terminal = isatty(2) == 1,
                       .last_step = ""}) {}

Progress::~Progress() {
  if (state_->open_line) std::fputc('\n', stderr);
}

static std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::lround(seconds));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

void Progress::update(int64_t done, int64_t total, const std::string& step) {
  State& s = *state_;
  if (s.quiet || total <= 0) return;
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - s.start).count();
  const double rate = elapsed > 0 ? static_cast<double>(done) / elapsed : 0;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const auto text = fmt::format("{} {}  {:.0f}%  {:.0f} {}/s  {} left", s.label, step,
                                100.0 * static_cast<double>(done) / static_cast<double>(total), rate, s.unit,
                                clock_text(left));
  if (s.terminal) {
    if (done < total && now - s.shown < std::chrono::milliseconds(100)) return;
    constexpr int width = 24;
    const auto filled = static_cast<size_t>(width * done / total);
    std::fprintf(stderr, "\r[%s%s] %s\033[K", std::string(filled, '#').c_str(),
                 std::string(width - filled, '.').c_str(), text.c_str());
    s.open_line = done < total;
    if (done == total) std::fputc('\n', stderr);
    std::fflush(stderr);
  } else {
    // A line a step, but no more than one in two seconds: a log of a long run stays readable.
    if (done < total && (step == s.last_step || now - s.shown < std::chrono::seconds(2))) return;
    s.last_step = step;
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  s.shown = now;
}

void note(bool quiet, const std::string& text) {
  if (!quiet) std::cerr << text << '\n';
}
void note_slower(bool quiet, const std::string& why) {
  if (!why.empty())
    note(quiet, "note: LibTorch's operations take the place of our kernels, which is slower: " + why);
}
void print_json(const nlohmann::ordered_json& value) {
  std::cout << value.dump(2) << '\n';
}

int threads_or_cores(int threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t i = 0;
  while (bytes >= 1024 && i + 1 < std::size(units)) bytes /= 1024, ++i;
  return fmt::format("{:.{}f} {}", bytes, i == 0 || bytes >= 100 ? 0 : 1, units[i]);
}

}  // namespace oscar::cli
