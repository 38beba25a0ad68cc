#include "libdump/decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <malloc.h>

#include <atomic>
#include <chrono>
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

// The opposite, where memory is bounded: what is freed is not resident.
static void return_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  malloc_trim(0);
}

// One sequence a thread keeps every product on one core, so that its bits do not depend on the number of
// threads. With fewer sequences than threads, or no memory for that many, LibTorch spreads each product
// instead, unless that independence was asked for.
Threading threading_of(const DecoderOptions& o, int64_t sequences_of_run) {
  const int block = o.block > 0 ? std::min(o.block, o.threads) : o.threads;
  if (o.deterministic || (block == o.threads && sequences_of_run >= o.threads)) return {block, 1};
  if (block == o.threads) return {1, o.threads};
  return {block, o.threads / block};
}

Decoder::Decoder(Model& model, std::vector<std::vector<int32_t>> sequences, DecoderOptions options)
    : model_(model),
      options_(std::move(options)),
      sequences_(std::move(sequences)),
      gpu_time_(model.device()) {
  options_.frugal ? return_freed_memory() : keep_freed_memory();
  // The thread that writes a layer takes memory that the last one had; arenas of their own forget it.
  if (!model.device().is_cpu()) mallopt(M_ARENA_MAX, 1);
  int64_t longest = 1;
  for (const auto& ids : sequences_) longest = std::max(longest, static_cast<int64_t>(ids.size()));
  model.reserve_positions(longest);
  const c10::InferenceMode guard;
  if (!model.device().is_cpu()) {
    gpu_time_.begin();
    for (const auto& ids : sequences_) hidden_.push_back(model.embed(ids));
    gpu_time_.end();
    return;
  }
  std::vector<int64_t> sizes;
  for (const auto& ids : sequences_)
    sizes.push_back(static_cast<int64_t>(ids.size()) * model.config().hidden);
  states_ = std::make_shared<Spill>(sizes, options_.spill);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const at::Tensor embedded = model.embed(sequences_[i]);
    hidden_.push_back(at::from_blob(
        states_->piece(i), embedded.sizes(), [kept = states_](void*) {}, at::kFloat));
    hidden_[i].copy_(embedded);
    states_->put_away(i);
  }
}

bool Decoder::done() const {
  return layer_ >= model_.config().layers;
}

// Complete, and on the device, when it returns.
std::unique_ptr<DecoderLayer> Decoder::load(int layer) const {
  const c10::InferenceMode guard;
  const SideStream stream(model_.device(), SideStream::Work::Loading);
  at::set_num_threads(options_.threads);
  return model_.load_layer(layer);
}

const DecoderLayer& Decoder::weights() {
  if (current_) return *current_;
  const auto begin = std::chrono::steady_clock::now();
  current_ = next_.valid() ? next_.get() : load(layer_);
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return *current_;
}

void Decoder::run_layer(const Sink& sink, const Attend& attend) {
  const DecoderLayer& layer = weights();
  if (options_.read_ahead && layer_ + 1 < model_.config().layers) {
    next_ = std::async(std::launch::async, [this, next = layer_ + 1] { return load(next); });
  }
  const auto count = static_cast<int64_t>(sequences_.size());
  const Threading threading = threading_of(options_, std::max(count, options_.sequences_of_run));
  // One thread launches for a GPU.
  const int workers =
      model_.device().is_cpu() ? static_cast<int>(std::min<int64_t>(threading.workers, count)) : 1;
  at::set_num_threads(threading.inner);

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
        const auto at = static_cast<size_t>(i);
        at::Tensor hidden = hidden_[at];
        gpu_time_.begin();
        layer.forward(hidden, take, replace);
        if (!hidden.is_same(hidden_[at])) hidden_[at].copy_(hidden);
        gpu_time_.end();
        if (states_) states_->put_away(at);
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
  wait_for(model_.device());  // with the weights goes their memory
  gpu_time_.settle();
  if (!first_layer_) {
    first_layer_ = gpu_time_.busy() + gpu_time_.idle();
    gpu_time_.restart();
  }
  ++layer_;
  current_.reset();
}

void Decoder::save(const std::filesystem::path& path) const {
  AtomicFile file(path);
  std::ofstream out(file.path(), std::ios::binary);
  for (size_t i = 0; i < hidden_.size(); ++i) {
    const at::Tensor rows = to_cpu(hidden_[i]);
    out.write(reinterpret_cast<const char*>(rows.const_data_ptr<float>()),
              static_cast<std::streamsize>(rows.numel() * sizeof(float)));
    if (states_) states_->put_away(i);
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
  for (size_t i = 0; i < hidden_.size(); ++i) {
    const auto part = file->bytes().subspan(offset, static_cast<size_t>(hidden_[i].numel()) * sizeof(float));
    at::Tensor rows = states_ ? hidden_[i] : at::empty(hidden_[i].sizes(), at::kFloat);
    std::memcpy(rows.mutable_data_ptr<float>(), part.data(), part.size());
    if (states_)
      states_->put_away(i);
    else
      hidden_[i] = to_device(rows, model_.device());
    file->forget(part);
    offset += part.size();
  }
  layer_ = layer;
  current_.reset();
  next_ = {};
}

}  // namespace oscar
