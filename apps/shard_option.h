// Which worker this process is: --shard i/n, or what a launcher has put into the environment.
#pragma once
#include "apps/cli.h"
#include "libdump/shard.h"

namespace oscar::cli {

struct ShardArguments {
  std::string shard;  // "", "i/n", "auto" or a launcher of the table
  int shards = 0;     // of how many; for launchers that do not say
};
void add_shard_options(CLI::App& app, ShardArguments& arguments);

struct ChosenShard {
  Shard shard;
  std::string origin;  // what it was read from, to be printed; "" where --shard was not given
};
// The environment is looked at only when --shard names a launcher or is auto: a stray RANK never takes a part
// of a run away. std::invalid_argument when no launcher is found, or one whose variables make no sense.
ChosenShard choose_shard(const ShardArguments& arguments);

}  // namespace oscar::cli
