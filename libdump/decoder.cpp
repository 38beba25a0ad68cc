#include "libdump/decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <malloc.h>

#include <atomic>
#include <climits>
#include <fstream>
#include <mutex>
#include <thread>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/npy.h"

namespace oscar {

// Every operation of LibTorch takes and returns tens of megabytes. By default the C library hands them back
// to the kernel each time, and clearing the pages again costs a tenth of the run.
static void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

Decoder::Decoder(Model& model, std::vector<std::vector<int32_t>> sequences, DecoderOptions options)
    : model_(model), options_(options), sequences_(std::move(sequences)) {
  keep_freed_memory();
  int64_t longest = 1;
  for (const auto& ids : sequences_) longest = std::max(longest, static_cast<int64_t>(ids.size()));
  model.reserve_positions(longest);
  const c10::InferenceMode guard;
  for (const auto& ids : sequences_) hidden_.push_back(model.embed(ids));
}

bool Decoder::done() const {
  return layer_ >= model_.config().layers;
}

const DecoderLayer& Decoder::weights() {
  if (!current_) current_ = next_.valid() ? next_.get() : model_.load_layer(layer_);
  return *current_;
}

void Decoder::run_layer(const Sink& sink, const Attend& attend) {
  const DecoderLayer& layer = weights();
  if (layer_ + 1 < model_.config().layers) {
    next_ = std::async(std::launch::async, [this, next = layer_ + 1] {
      const c10::InferenceMode guard;
      return model_.load_layer(next);
    });
  }
  const auto count = static_cast<int64_t>(sequences_.size());
  // One sequence a thread keeps every product on one core, so that its bits do not depend on the number of
  // threads. With fewer sequences than threads LibTorch spreads each product instead, unless that
  // independence was asked for.
  const bool by_sequence =
      options_.deterministic || std::max(count, options_.sequences_of_run) >= options_.threads;
  const int workers = by_sequence ? static_cast<int>(std::min<int64_t>(options_.threads, count)) : 1;
  at::set_num_threads(by_sequence ? 1 : options_.threads);

  std::atomic<int64_t> next_index{0};
  std::mutex failed;
  std::exception_ptr error;
  const auto work = [&] {
    const c10::InferenceMode guard;
    at::init_num_threads();  // OpenMP counts threads in each thread; what `sink` and `attend` call obeys too
    for (int64_t i; (i = next_index++) < count;) {
      std::function<void(const AttentionRows&)> take;
      oscar::Attend replace;
      if (sink) take = [&](const AttentionRows& rows) { sink(i, rows); };
      if (attend) replace = [&](const AttentionRows& rows, float* o) { attend(i, rows, o); };
      try {
        layer.forward(hidden_[static_cast<size_t>(i)], take, replace);
      } catch (...) {
        const std::lock_guard lock(failed);
        if (!error) error = std::current_exception();
        next_index = count;
      }
    }
  };
  if (workers == 1) {
    work();
  } else {
    std::vector<std::jthread> threads;
    for (int i = 0; i < workers; ++i) threads.emplace_back(work);
  }
  if (error) std::rethrow_exception(error);
  ++layer_;
  current_.reset();
}

void Decoder::save(const std::filesystem::path& path) const {
  AtomicFile file(path);
  std::ofstream out(file.path(), std::ios::binary);
  for (const auto& hidden : hidden_) {
    out.write(reinterpret_cast<const char*>(hidden.const_data_ptr<float>()),
              static_cast<std::streamsize>(hidden.numel() * sizeof(float)));
  }
  if (!out.flush())
    throw failure("{}: write failed: {}", path.string(), std::generic_category().message(errno));
  out.close();
  file.commit();
}

void Decoder::restore(const std::filesystem::path& path, int layer) {
  const auto file = MappedFile::open(path);
  size_t need = 0, offset = 0;
  for (const auto& hidden : hidden_) need += static_cast<size_t>(hidden.numel()) * sizeof(float);
  if (file->bytes().size() != need)
    throw failure("{}: expected {} bytes of hidden states, found {}: remove the .partial folder",
                  path.string(), need, file->bytes().size());
  for (auto& hidden : hidden_) {
    const size_t bytes = static_cast<size_t>(hidden.numel()) * sizeof(float);
    std::memcpy(hidden.mutable_data_ptr<float>(), file->bytes().data() + offset, bytes);
    offset += bytes;
  }
  layer_ = layer;
  current_.reset();
  next_ = {};
}

}  // namespace oscar
