#include "libcalib/artifacts/absorb_plan.h"

#include <algorithm>
#include <set>

#include "formats/error.h"

namespace oscar {
namespace {

class Planner {
 public:
  Planner(const std::filesystem::path& model, const RotationSet& rotations, bool fold_output)
      : model_(model), rotations_(rotations), fold_output_(fold_output) {
    plan_.geometry = read_geometry(model);
    plan_.shards = read_sharded_safetensors(model);
  }
  AbsorbPlan run() {
    refuse_model();
    refuse_rotations();
    find_work();
    return std::move(plan_);
  }

 private:
  void refuse_model() const {
    const std::string where = model_.string();
    const auto marked = [](const SafeTensorsShard& shard) {
      return shard.content.metadata.contains(kAbsorbedKey);
    };
    if (std::filesystem::exists(model_ / kAbsorbedRecord) || std::ranges::any_of(plan_.shards.shards, marked))
      throw invalid("{}: its values are rotated already: start from the original checkpoint", where);
    if (plan_.geometry.mla)
      throw invalid("{}: multi-head latent attention (kv_lora_rank) has no V projection to absorb into",
                    where);
    if (plan_.geometry.output_gate)
      throw invalid(
          "{}: an output gate (attn_output_gate) stands between attention and o_proj: rotated values would "
          "have to be "
          "turned back before it; serve this model with the rotation file",
          where);
    if (plan_.geometry.block_scales)
      throw invalid(
          "{}: block-scaled weights (quantization_config.weight_block_size) cannot be rotated in place: a "
          "block spans rows "
          "of a head; start from the BF16 checkpoint",
          where);
  }
  void refuse_rotations() const {
    if (rotations_.side != Side::V)
      throw invalid("'{}' rotates keys: --absorb-v takes the rotations of values", rotations_.objective);
    for (const auto& [id, layer] : rotations_.layers) {
      if (!layer.means.empty())
        throw invalid("'{}' takes a mean off the values, which cannot be absorbed: fit without centring",
                      rotations_.objective);
      const auto d = layer.rotation[0].rows(), count = static_cast<Eigen::Index>(layer.rotation.size());
      if (d != plan_.geometry.head_dim)
        throw invalid("layer {}: the rotation has {} dims, the model's heads {}", id, d,
                      plan_.geometry.head_dim);
      if (count != 1 && count != plan_.geometry.kv_heads)
        throw invalid("layer {}: {} rotations for {} KV heads", id, count, plan_.geometry.kv_heads);
    }
  }

  const Tensor* find(const std::string& name) const { return plan_.shards.find(name); }
  std::string present(const std::string& name) const { return find(name) ? name : ""; }

  // Which tensors change, and how; every refusal comes before the first write.
  void find_work() {
    std::set<int> found, folded;
    const int64_t kv_rows = int64_t{plan_.geometry.kv_heads} * plan_.geometry.head_dim,
                  q_rows = int64_t{plan_.geometry.q_heads} * plan_.geometry.head_dim;
    for (const auto& shard : plan_.shards.shards) {
      for (const auto& entry : shard.content.tensors) {
        const auto& name = entry.first;
        const auto [layer, part] = attention_name(name);
        if (layer < 0 || layer >= plan_.geometry.layers) continue;
        if (part.starts_with("v_norm."))
          throw invalid("{}: a norm on values does not commute with their rotation", name);
        if (part == "kv_b_proj.weight")
          throw invalid("{}: multi-head latent attention has no V projection", name);
        const bool separate = part == "v_proj.weight", fused = part == "qkv_proj.weight",
                   output = part == "o_proj.weight";
        if (part.starts_with("v_proj.") && (part.ends_with("packed") || part.ends_with("qweight")))
          throw invalid("{}: packed weights cannot be rotated: start from the BF16 checkpoint", name);
        if (!separate && !fused && !(output && fold_output_)) continue;
        const std::string stem = name.substr(0, name.size() - std::string_view("weight").size());
        if (find(stem + "weight_scale_inv"))
          throw invalid(
              "{}: block-scaled FP8 cannot be rotated in place: a block spans rows of a head; start from the "
              "BF16 checkpoint",
              name);
        auto work = std::make_shared<AbsorbedProjection>(
            AbsorbedProjection{name, present(stem + "weight_scale"), present(stem + "bias"),
                               fused ? q_rows + kv_rows : 0, output});
        if (output) {
          work->bias.clear();
          folded.insert(layer);
          check_output(*work, stem, q_rows);
        } else {
          if (!found.insert(layer).second)
            throw invalid("layer {} has two V projections, one of them {}", layer, name);
          check_v(*work, fused, fused ? q_rows + 2 * kv_rows : kv_rows);
        }
        for (const auto* each : {&work->weight, &work->scale, &work->bias}) {
          if (!each->empty()) plan_.changed[*each] = work;
        }
      }
    }
    compare_layers(found);
    for (const int id : found) {
      if (fold_output_ && !folded.contains(id))
        throw invalid("{}: layer {} has no o_proj.weight to fold into", model_.string(), id);
    }
  }
  void compare_layers(const std::set<int>& found) const {
    std::vector<int> missing, surplus;
    for (const int id : found) {
      if (!rotations_.layers.contains(id)) missing.push_back(id);
    }
    for (const auto& entry : rotations_.layers) {
      if (!found.contains(entry.first)) surplus.push_back(entry.first);
    }
    if (missing.empty() && surplus.empty()) return;
    throw invalid(
        "{}: layers with a V projection and layers of the rotation differ: only in the model [{}], only in "
        "the rotation [{}]; "
        "ids are global decoder layers",
        model_.string(), fmt::join(missing, ", "), fmt::join(surplus, ", "));
  }
  void check_v(const AbsorbedProjection& work, bool fused, int64_t rows) {
    const Tensor& weight = *find(work.weight);
    if (weight.shape.size() != 2 || weight.shape[0] != rows)
      throw invalid("{}: expected [{}, in] ({} KV heads of {}), found {}", work.weight, rows,
                    plan_.geometry.kv_heads, plan_.geometry.head_dim, to_string(weight.shape));
    check_dtype(work, weight);
    if (fused && weight.dtype == DType::F8_E4M3)
      throw invalid("{}: V rows in FP8 beside Q and K share their scales: start from the BF16 checkpoint",
                    work.weight);
    if (!work.bias.empty() && find(work.bias)->shape != Shape{rows})
      throw invalid("{}: expected [{}], found {}", work.bias, rows, to_string(find(work.bias)->shape));
    plan_.dtype = info(weight.dtype).name;
  }
  void check_output(const AbsorbedProjection& work, const std::string& stem, int64_t columns) const {
    const Tensor& weight = *find(work.weight);
    if (weight.shape.size() != 2 || weight.shape[1] != columns)
      throw invalid("{}: expected [hidden, {}], found {}", work.weight, columns, to_string(weight.shape));
    check_dtype(work, weight);
    if (find(stem + "input_scale"))
      throw invalid(
          "{}: the scale of its input was measured on values that are not rotated: leave the output "
          "unfolded, or start from the "
          "BF16 checkpoint",
          work.weight);
  }
  void check_dtype(const AbsorbedProjection& work, const Tensor& weight) const {
    const bool eight = weight.dtype == DType::F8_E4M3;
    if (!eight && weight.dtype != DType::BF16 && weight.dtype != DType::F16 && weight.dtype != DType::F32)
      throw invalid("{}: expected BF16, F16, F32 or F8_E4M3, found {}", work.weight, info(weight.dtype).name);
    if (eight == work.scale.empty())
      throw invalid(
          "{}: {}", work.weight,
          eight ? "FP8 without a weight_scale beside it" : "a weight_scale beside weights that are not FP8");
    if (!eight) return;
    const Tensor& scale = *find(work.scale);
    const int64_t rows = weight.shape[0];
    if (scale.count() != 1 && (scale.shape != Shape{rows} && scale.shape != Shape{rows, 1}))
      throw invalid("{}: expected one scale, or one a channel [{}], found {}", work.scale, rows,
                    to_string(scale.shape));
    if (scale.dtype != DType::F32 && scale.dtype != DType::BF16 && scale.dtype != DType::F16)
      throw invalid("{}: expected F32, BF16 or F16, found {}", work.scale, info(scale.dtype).name);
  }

  const std::filesystem::path& model_;
  const RotationSet& rotations_;
  const bool fold_output_;
  AbsorbPlan plan_;
};

}  // namespace

AbsorbPlan plan_absorption(const std::filesystem::path& model, const RotationSet& rotations,
                           bool fold_output) {
  return Planner(model, rotations, fold_output).run();
}

}  // namespace oscar
