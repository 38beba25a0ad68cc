#include "libcalib/artifacts/absorb.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/pending_directory.h"
#include "libcalib/artifacts/absorb_plan.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

class Absorption {
 public:
  Absorption(const fs::path& model, const RotationSet& rotations, const AbsorbOptions& options)
      : model_(model),
        rotations_(rotations),
        options_(options),
        plan_(plan_absorption(model, rotations, options.fold_output)) {}

  AbsorbReport write(const fs::path& out) {
    AbsorbReport report{static_cast<int>(rotations_.layers.size()),
                        plan_.geometry.q_heads,
                        plan_.geometry.kv_heads,
                        plan_.geometry.head_dim,
                        plan_.dtype,
                        {},
                        {}};
    PendingDirectory pending(out);
    int64_t done = 0;
    for (const auto& shard : plan_.shards.shards) {
      SafeTensors content = shard.content;
      content.metadata[kAbsorbedKey] = rotations_.objective;
      for (const auto& entry : shard.content.tensors) {
        if (const auto changed = plan_.changed.find(entry.first); changed != plan_.changed.end())
          content.tensors[entry.first] = apply(*changed->second, entry.first);
      }
      write_safetensors(pending.path() / shard.file, content);
      if (options_.progress) options_.progress(++done, static_cast<int64_t>(plan_.shards.shards.size()));
    }
    copy_rest(pending.path(), report);
    const nlohmann::ordered_json record = {
        {"schema", "oscar-absorbed/1"},          {"tool_version", OSCAR_VERSION},
        {"objective", rotations_.objective},     {"per_head", rotations_.per_head},
        {"output_folded", options_.fold_output}, {"layers", layer_ids()}};
    write_file(pending.path() / kAbsorbedRecord, record.dump(2) + "\n");
    pending.publish();
    return report;
  }

 private:
  std::vector<int> layer_ids() const {
    std::vector<int> ids;
    for (const auto& entry : rotations_.layers) ids.push_back(entry.first);
    return ids;
  }

  const Tensor* find(const std::string& name) const { return plan_.shards.find(name); }

  // A weight as numbers, its scales applied.
  Matrix load(const std::string& name, const std::string& scale) const {
    const Tensor& tensor = *find(name);
    const int64_t rows = tensor.shape[0], columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    const auto values = tensor.doubles();
    Matrix m = ConstMatrixMap(values.data(), rows, columns);
    if (!scale.empty()) {
      const auto scales = find(scale)->doubles();
      for (int64_t r = 0; r < rows; ++r) m.row(r) *= scales[scales.size() == 1 ? 0 : static_cast<size_t>(r)];
    }
    if (!m.allFinite()) throw failure("{}: {}: has values that are not finite", model_.string(), name);
    return m;
  }
  Tensor store(const Tensor& like, const Matrix& m) const {
    std::vector<float> values(m.data(), m.data() + m.size());
    if (like.dtype == DType::F64) throw invalid("weights in F64 are not written");
    std::vector<std::byte> bytes(values.size() * info(like.dtype).size());
    from_float(like.dtype, values.data(), values.size(), bytes.data());
    return make_tensor(like.dtype, like.shape, std::move(bytes));
  }

  Matrix rotated(const AbsorbedProjection& work, Matrix m, int layer) const {
    const LayerRotation& rotation = rotations_.layers.at(layer);
    const int64_t d = plan_.geometry.head_dim,
                  heads = work.output ? plan_.geometry.q_heads : plan_.geometry.kv_heads;
    for (int64_t h = 0; h < heads; ++h) {
      const auto of =
          static_cast<size_t>(work.output ? h / (plan_.geometry.q_heads / plan_.geometry.kv_heads) : h);
      const size_t index = rotation.rotation.size() == 1 ? 0 : of;
      const Matrix& r = rotation.rotation[index];
      if (work.output) {
        // attention = attention' R^-1, so W_o' = W_o R^-T.
        const Matrix back = rotation.inverse.empty() ? r : Matrix(rotation.inverse[index].transpose());
        m.middleCols(h * d, d) = (m.middleCols(h * d, d) * back).eval();
      } else {
        m.middleRows(work.first + h * d, d) = (r.transpose() * m.middleRows(work.first + h * d, d)).eval();
      }
    }
    return m;
  }

  // FP8: the largest entry of a row, or of the tensor, becomes the largest code.
  Vector new_scales(const AbsorbedProjection& work, const Matrix& m) const {
    constexpr double kLargest = 448;
    const auto count = find(work.scale)->count();
    const Vector rows = m.cwiseAbs().rowwise().maxCoeff() / kLargest;
    Vector scales = count == 1 ? Vector::Constant(1, rows.maxCoeff()) : rows;
    for (double& scale : scales) {
      if (scale == 0) scale = 1;
    }
    return scales;
  }
  Tensor apply(const AbsorbedProjection& work, const std::string& name) const {
    const int layer = attention_name(work.weight).layer;
    const Tensor& original = *find(name);
    if (name == work.bias) return store(original, rotated(work, load(name, ""), layer));
    const Matrix m = rotated(work, load(work.weight, work.scale), layer);
    if (work.scale.empty()) return keep_rows(work, original, m);
    // Rounded as it is stored, so that codes are of the scale that a reader sees.
    const Vector wanted = new_scales(work, m);
    const Tensor scales = store(*find(work.scale), Matrix(wanted));
    if (name == work.scale) return scales;
    const auto kept = scales.doubles();
    Matrix codes = m;
    for (Eigen::Index r = 0; r < m.rows(); ++r)
      codes.row(r) /= kept[kept.size() == 1 ? 0 : static_cast<size_t>(r)];
    return store(original, codes);
  }
  // Rows of Q and K in a fused projection keep their bytes, whatever rounding would do to them.
  Tensor keep_rows(const AbsorbedProjection& work, const Tensor& original, const Matrix& m) const {
    const Tensor all = store(original, m);
    if (work.first == 0) return all;
    std::vector<std::byte> bytes(all.bytes.begin(), all.bytes.end());
    const auto kept = static_cast<size_t>(work.first * original.shape[1]) * info(original.dtype).size();
    std::copy_n(original.bytes.begin(), kept, bytes.begin());
    return make_tensor(original.dtype, original.shape, std::move(bytes));
  }

  void copy_rest(const fs::path& out, AbsorbReport& report) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(model_)) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const auto& file : files) {
      const std::string name = file.filename().string(), extension = file.extension().string();
      if (extension == ".safetensors") continue;
      if (!fs::is_regular_file(file) || extension == ".bin" || extension == ".pt" || extension == ".pth" ||
          extension == ".gguf" || extension == ".h5" || extension == ".msgpack") {
        report.left.push_back(name);
        continue;
      }
      std::error_code error;
      fs::copy_file(file, out / name, error);
      if (error) throw failure("{}: cannot be copied: {}", file.string(), error.message());
      report.copied.push_back(name);
    }
  }

  const fs::path& model_;
  const RotationSet& rotations_;
  const AbsorbOptions& options_;
  AbsorbPlan plan_;
};

}  // namespace

AbsorbReport absorb_v(const fs::path& model, const RotationSet& rotations, const fs::path& out,
                      const AbsorbOptions& options) {
  return Absorption(model, rotations, options).write(out);
}

}  // namespace oscar
