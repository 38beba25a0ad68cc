"""GGUF files of the checkpoints in tests/golden/families, with the tensor names of the `gguf` package and the changes its converters make.

    make_gguf.py FAMILIES OUT
"""
import json
import math
import pathlib
import re
import sys

import gguf
import torch
from safetensors.torch import load_file

# family: (architecture, rows of q and k interleaved)
FAMILIES = {"llama": ("llama", True), "llama3": ("llama", True), "mistral": ("llama", True), "qwen2": ("qwen2", False), "qwen3": ("qwen3", False),
            "smollm3": ("smollm3", True), "gemma2": ("gemma2", False), "gemma3": ("gemma3", False), "phi3": ("phi3", False), "olmo2": ("olmo2", False), "granite": ("granite", True),
            "longrope": ("phi3", False), "qwen3_moe": ("qwen3moe", False), "mixtral": ("llama", True),
            "glm4": ("glm4", False), "glm4_moe": ("glm4moe", False), "minimax_m2": ("minimax-m2", False), "gpt_oss": ("gpt-oss", False),
            "qwen3_next": ("qwen3next", False), "qwen3_5": ("qwen35", False), "qwen3_5_moe": ("qwen35moe", False)}
# Files that converters wrote, or write when asked to: qkvz in one tensor and nothing of length 1; gate and up of experts in one tensor.
VARIANTS = {"qwen3_next_early": "qwen3_next", "qwen3_5_moe_fused": "qwen3_5_moe"}


def permute(weight, heads):
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def together(weights):
    """Experts of a layer as one tensor, gate and up apart."""
    result, stacks = {}, {}
    for name, tensor in weights.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight", name):
            stacks.setdefault(f"{match[1]}.{match[3]}.weight", {})[int(match[2])] = tensor
        elif ".experts.gate_up_proj" in name:  # gpt-oss: (E, in, out), gate and up by turns
            kind = ".bias" if name.endswith("_bias") else ".weight"
            for part, first in (("gate_proj", 0), ("up_proj", 1)):
                own = tensor[..., first::2]
                result[name.split(".gate_up_proj")[0] + f".{part}{kind}"] = own if kind == ".bias" else own.transpose(1, 2)
        elif ".experts.down_proj" in name:
            result[name.removesuffix("_bias") + (".bias" if name.endswith("_bias") else ".weight")] = \
                tensor if name.endswith("_bias") else tensor.transpose(1, 2)
        else:
            result[name] = tensor
    for name, parts in stacks.items():
        result[name] = torch.stack([parts[i] for i in range(len(parts))])
    return result


def together_fused(weights):
    """together(), then gate over up."""
    result = together(weights)
    for name in [name for name in result if name.endswith("experts.gate_proj.weight")]:
        up = name.replace("gate_proj", "up_proj")
        result[name.replace("gate_proj", "gate_up_proj")] = torch.cat([result.pop(name), result.pop(up)], 1)
    return result


def hybrid(weights, config, tiled, early):
    """Layers of the gated delta rule: what is stored of them, and in which order of the value heads."""
    keys, values, dk, dv = (config[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    share = values // keys

    def in_turns(tensor, axis=0):  # the value heads of a key head are neighbours; then head 0 of every key head, head 1, ...
        return tensor.unflatten(axis, (keys, share, -1)).transpose(axis, axis + 1).flatten(axis, axis + 2)

    result = {}
    for name, tensor in weights.items():
        part = name.split("linear_attn.")[-1]
        if tiled and part in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            tensor = in_turns(tensor)
        elif tiled and part in ("in_proj_qkv.weight", "conv1d.weight"):
            tensor = torch.cat([tensor[:2 * keys * dk], in_turns(tensor[2 * keys * dk:])])
        elif tiled and part == "out_proj.weight":
            tensor = in_turns(tensor, 1)
        if part == "A_log":
            tensor = -tensor.exp()
        elif part == "conv1d.weight":
            tensor = tensor[:, 0]
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            tensor = tensor + 1
        elif early and name.endswith("shared_expert_gate.weight"):
            tensor = tensor[0]
        if part == "in_proj_qkvz.weight" and not early:
            parts = tensor.unflatten(0, (keys, -1)).split([dk, dk, share * dv, share * dv], 1)
            q, k, v, z = (own.flatten(0, 1) for own in parts)
            result[name.replace("qkvz", "qkv")], result[name.replace("qkvz", "z")] = torch.cat([q, k, v]), z
        else:
            result[name.replace("dt_bias", "dt_proj.bias")] = tensor
    return result


def with_layers_after(weights, config):
    """The layers that predict further tokens, which the checkpoints here lack."""
    count, layers, hidden = config.get("num_nextn_predict_layers", 0), config["num_hidden_layers"], config["hidden_size"]
    for i in range(layers, layers + count):
        last = f"model.layers.{layers - 1}."
        weights |= {name.replace(last, f"model.layers.{i}."): tensor.flip(0) for name, tensor in weights.items() if name.startswith(last)}
        weights |= {f"model.layers.{i}.{name}.weight": torch.ones(shape) for name, shape in
                    (("eh_proj", (hidden, 2 * hidden)), ("enorm", hidden), ("hnorm", hidden), ("shared_head.norm", hidden))}
    return weights, layers + count


def write(folder, out, architecture, interleaved, variant=""):
    config = json.loads((folder / "config.json").read_text())
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    weights, blocks = with_layers_after(weights, config)
    if "linear_num_key_heads" in config:
        weights = hybrid(weights, config, architecture != "qwen3next", variant.endswith("early"))
    writer = gguf.GGUFWriter(out, architecture)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    writer.add_block_count(blocks)
    if blocks > config["num_hidden_layers"]:
        writer.add_nextn_predict_layers(blocks - config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(full.get("rope_theta") or config["rope_theta"])
    writer.add_rope_dimension_count(int(d * (full.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1)))
    if architecture in ("gemma2", "gemma3", "phi3", "gpt-oss") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if full.get("rope_type") == "longrope":
        # As the converter of Phi-3 writes it.
        scale = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors((1 + math.log(scale) / math.log(config["original_max_position_embeddings"])) ** 0.5)
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", torch.tensor(full[f"{kind}_factor"], dtype=torch.float32).numpy())
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
        if architecture == "minimax-m2":
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        if architecture == "glm4moe":
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_shared_count(config["n_shared_experts"])
            writer.add_leading_dense_block_count(config["first_k_dense_replace"])
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_expert_weights_norm(config["norm_topk_prob"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "linear_num_key_heads" in config:
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        writer.add_full_attention_interval(config.get("full_attention_interval", 4))
        if architecture != "qwen3next":
            writer.add_rope_dimension_sections([11, 11, 10, 0])
    if architecture == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if full.get("rope_type") == "llama3":
        # The converter stores by what each frequency is divided.
        from transformers import AutoConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        frequencies = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(folder), "cpu")[0]
        plain = 1.0 / full["rope_theta"] ** (torch.arange(0, d, 2).float() / d)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).numpy())
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), blocks)
    usual = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, blocks)
    for name, tensor in (together_fused if variant.endswith("fused") else together)(weights).items():
        if interleaved and ("q_proj" in name or "k_proj" in name):
            tensor = permute(tensor, heads if "q_proj" in name else kv_heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        # A dense layer among those with experts has the names that all others have.
        mapped = names.get_name(name, (".weight", ".bias")) or usual.get_name(name, (".weight", ".bias"))
        if name.endswith("sinks"):
            mapped += ".weight"
        assert mapped, name
        writer.add_tensor(mapped, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for family, (architecture, interleaved) in FAMILIES.items():
    write(pathlib.Path(sys.argv[1]) / family, pathlib.Path(sys.argv[2]) / f"{family}.gguf", architecture, interleaved)
for variant, family in VARIANTS.items():
    write(pathlib.Path(sys.argv[1]) / family, pathlib.Path(sys.argv[2]) / f"{variant}.gguf", *FAMILIES[family], variant)
