#include "apps/shard_option.h"

#include <charconv>
#include <cstdlib>

#include "formats/error.h"

namespace oscar::cli {
namespace {

struct Launcher {
  std::string_view name;
  const char *index, *count;
};
// Innermost first: mpirun under sbatch leaves SLURM_PROCID of the batch step in place, torchrun's variables
// lie about more often than it is nested in the others.
constexpr Launcher kLaunchers[] = {
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"pmi", "PMI_RANK", "PMI_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS"},
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"kubernetes", "JOB_COMPLETION_INDEX", "OSCAR_SHARDS"},
};

int number(std::string_view text, std::string_view where) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw invalid("{}: expected a number, found '{}'", where, text);
  return value;
}

Shard checked(int index, int count, const std::string& where) {
  if (count < 1 || count > 1 << 16 || index >= count)
    throw invalid("{}: expected i/n with 0 <= i < n, counted from 0, found {}/{}", where, index, count);
  return {index, count};
}

ChosenShard from_launcher(const Launcher& launcher, int shards) {
  const char *index = std::getenv(launcher.index), *count = std::getenv(launcher.count);
  const auto asked = fmt::format("--shard {}", launcher.name);
  if (!index) throw invalid("{}: {} is not set: this process was not started by it", asked, launcher.index);
  if (!count && shards == 0)
    throw invalid("{}: {} is not set: say of how many workers, with it or with --shards N", asked,
                  launcher.count);
  const int known = count ? number(count, launcher.count) : shards;
  if (shards > 0 && known != shards) throw invalid("--shards {}: {} says {}", shards, launcher.count, known);
  const auto origin =
      count ? fmt::format("{} {}={} {}={}", launcher.name, launcher.index, index, launcher.count, count)
            : fmt::format("{} {}={} --shards {}", launcher.name, launcher.index, index, shards);
  return {checked(number(index, launcher.index), known, origin), origin};
}

std::string launcher_names() {
  std::string names;
  for (const auto& launcher : kLaunchers) names += (names.empty() ? "" : ", ") + std::string(launcher.name);
  return names;
}

}  // namespace

void add_shard_options(CLI::App& app, ShardArguments& a) {
  app.add_option("--shard", a.shard,
                 "i/n: run the share of worker i of n, counted from 0, into OUTPUT.shard-i-of-n; auto: as "
                 "the launcher "
                 "says, the first found of " +
                     launcher_names() + "; or one of these")
      ->group("Workers");
  app.add_option("--shards", a.shards, "Of how many workers, where the launcher does not say (kubernetes)")
      ->check(CLI::PositiveNumber)
      ->group("Workers");
}

ChosenShard choose_shard(const ShardArguments& a) {
  if (a.shard.empty()) {
    if (a.shards > 0) throw invalid("--shards: says of how many; which one is missing: --shard i/n or auto");
    return {};
  }
  if (const auto slash = a.shard.find('/'); slash != std::string::npos) {
    if (a.shards > 0) throw invalid("--shards: --shard {} says of how many already", a.shard);
    const std::string_view text = a.shard;
    return {checked(number(text.substr(0, slash), "--shard"), number(text.substr(slash + 1), "--shard"),
                    "--shard"),
            "--shard " + a.shard};
  }
  std::string variables;
  for (const auto& launcher : kLaunchers) {
    if (a.shard == launcher.name || (a.shard == "auto" && std::getenv(launcher.index)))
      return from_launcher(launcher, a.shards);
    variables += fmt::format("{}{} ({})", variables.empty() ? "" : ", ", launcher.index, launcher.name);
  }
  if (a.shard == "auto")
    throw invalid("--shard auto: none of {} is set: start it with a launcher, or say --shard i/n", variables);
  throw invalid("--shard {}: expected i/n, auto, or one of {}", a.shard, launcher_names());
}

}  // namespace oscar::cli
