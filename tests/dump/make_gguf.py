"""GGUF files of the checkpoints in tests/golden/families, with the tensor names of the `gguf` package and the changes its converters make.

    make_gguf.py FAMILIES OUT
"""
import json
import pathlib
import sys

import gguf
import torch
from safetensors.torch import load_file

# family: (architecture, rows of q and k interleaved)
FAMILIES = {"llama": ("llama", True), "llama3": ("llama", True), "mistral": ("llama", True), "qwen2": ("qwen2", False), "qwen3": ("qwen3", False),
            "smollm3": ("smollm3", True), "gemma3": ("gemma3", False), "phi3": ("phi3", False), "olmo2": ("olmo2", False), "granite": ("granite", True)}


def permute(weight, heads):
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write(folder, out, architecture, interleaved):
    config = json.loads((folder / "config.json").read_text())
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    writer = gguf.GGUFWriter(out, architecture)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(full.get("rope_theta") or config["rope_theta"])
    writer.add_rope_dimension_count(int(d * (full.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1)))
    if architecture in ("gemma3", "phi3") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
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
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), config["num_hidden_layers"])
    for name, tensor in weights.items():
        if interleaved and ("q_proj" in name or "k_proj" in name):
            tensor = permute(tensor, heads if "q_proj" in name else kv_heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor + 1
        mapped = names.get_name(name, (".weight", ".bias"))
        assert mapped, name
        writer.add_tensor(mapped, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for family, (architecture, interleaved) in FAMILIES.items():
    write(pathlib.Path(sys.argv[1]) / family, pathlib.Path(sys.argv[2]) / f"{family}.gguf", architecture, interleaved)
