#!/usr/bin/env python3
"""Tiny random checkpoints of every family, written by `transformers` in bfloat16, and what it makes of them in float32.

    make_families.py        writes families/NAME/{config.json,model.safetensors} and families/NAME.safetensors beside this script

Prompts of 1, 7, 130 and 700 tokens, longer than any window. Kept: three positions of every layer's post-RoPE q, k, v and attention output,
and the logits there. Needs torch, transformers, safetensors.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

LENGTHS = [1, 7, 130, 700]
COMMON = dict(vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=2048, tie_word_embeddings=False, pad_token_id=None, bos_token_id=1, eos_token_id=2)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 256}


def families():
    t = transformers
    yield "llama", t.LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True)
    yield "llama3", t.LlamaConfig(**{**COMMON, "tie_word_embeddings": True}, head_dim=16, rope_scaling=LLAMA3, rope_parameters=LLAMA3)
    yield "mistral", t.MistralConfig(**COMMON, head_dim=16, sliding_window=50)
    yield "qwen2", t.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=40, max_window_layers=1)
    yield "qwen3", t.Qwen3Config(**COMMON, head_dim=20)
    yield "smollm3", t.SmolLM3Config(**{**COMMON, "num_hidden_layers": 4}, no_rope_layer_interval=4)
    yield "gemma3", t.Gemma3TextConfig(**{**COMMON, "tie_word_embeddings": True, "num_hidden_layers": 7, "hidden_size": 32}, head_dim=16,
                                       sliding_window=60, query_pre_attn_scalar=16)
    yield "phi3", t.Phi3Config(**{**COMMON, "pad_token_id": 0}, sliding_window=45, partial_rotary_factor=0.5)
    yield "olmo2", t.Olmo2Config(**COMMON)
    yield "granite", t.GraniteConfig(**COMMON, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=2.5)
    moe = dict(num_experts_per_tok=2, moe_intermediate_size=24)
    yield "qwen3_moe", t.Qwen3MoeConfig(**COMMON, **moe, head_dim=16, num_experts=6, norm_topk_prob=True, mlp_only_layers=[1])
    yield "mixtral", t.MixtralConfig(**{**COMMON, "intermediate_size": 24}, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    yield "glm4", t.Glm4Config(**COMMON, head_dim=16, partial_rotary_factor=0.5, attention_bias=True)
    yield "glm4_moe", t.Glm4MoeConfig(**COMMON, **moe, head_dim=16, partial_rotary_factor=0.5, n_routed_experts=6, n_shared_experts=1,
                                      n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5, use_qk_norm=True,
                                      norm_topk_prob=True, attention_bias=True)
    if hasattr(t, "MiniMaxM2Config"):
        yield "minimax_m2", t.MiniMaxM2Config(**{**COMMON, "intermediate_size": 24}, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
                                              rotary_dim=8, partial_rotary_factor=0.5)
    yarn = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 256}
    oss = dict(COMMON, hidden_size=64, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=40,
               rope_parameters=yarn)
    two = dict(COMMON, tie_word_embeddings=True, num_hidden_layers=4, hidden_size=32, head_dim=16, sliding_window=60,
               attn_logit_softcapping=4.0, final_logit_softcapping=6.0)
    yield "gemma2", t.Gemma2Config(**two, query_pre_attn_scalar=16)
    # Another scale than the head dim gives, which a GGUF file cannot say.
    yield "gemma2_scale", t.Gemma2Config(**{**two, "num_hidden_layers": 2}, query_pre_attn_scalar=9)
    delta = dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=8,
                 layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"], num_hidden_layers=4)
    yield "qwen3_5", t.Qwen3_5TextConfig(**{**COMMON, **delta})
    # Attention first: what experts make of a rounding is not compared.
    delta["layer_types"] = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    yield "qwen3_next", t.Qwen3NextConfig(**{**COMMON, **moe, **delta}, num_experts=4, shared_expert_intermediate_size=20)
    five = {k: v for k, v in COMMON.items() if k != "intermediate_size"}
    yield "qwen3_5_moe", t.Qwen3_5MoeTextConfig(**{**five, **moe, **delta}, num_experts=4, shared_expert_intermediate_size=20)
    short, long = [1.0 + 0.1 * i for i in range(8)], [1.0 + 2.0 * i for i in range(8)]
    yield "longrope", t.Phi3Config(**{**COMMON, "pad_token_id": 0, "hidden_size": 64}, original_max_position_embeddings=256,
                                   rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": short, "long_factor": long})
    yield "yarn", t.LlamaConfig(**COMMON, head_dim=16, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 256})
    yield "dynamic", t.LlamaConfig(**{**COMMON, "max_position_embeddings": 256}, head_dim=16, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})
    yield "gpt_oss", t.GptOssConfig(**oss)
    yield "gpt_oss_mxfp4", t.GptOssConfig(**{**oss, "num_hidden_layers": 2})


def prompt(length):
    return torch.tensor([[(7 * i * i + 3 * i + length) % 96 for i in range(length)]])


def kept(length):
    return sorted({0, length // 2, length - 1})


def record(model, ids):
    entries = {}

    def recording(module, query, key, value, mask, **kwargs):
        # Of the family: with its soft cap or its sink logits.
        eager = sys.modules[type(module).__module__].eager_attention_forward
        out, weights = eager(module, query, key, value, mask, **kwargs)
        rows = {"q": query[0].transpose(0, 1), "k": key[0].transpose(0, 1), "v": value[0].transpose(0, 1), "o": out[0]}
        entries[module.layer_idx] = rows
        return out, weights

    AttentionInterface.register("recording", recording)
    AttentionMaskInterface.register("recording", eager_mask)
    model.set_attn_implementation("recording")
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0]
    return [entries[i] for i in sorted(entries)], logits


def mxfp4(weight):
    """(E, in, out) as blocks (E, out, in / 32, 16) and scales (E, out, in / 32): the nearest codes under the scale of the largest."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    groups = weight.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponent = (groups.abs().amax(-1) / 6).log2().ceil()
    scaled = groups / exponent.exp2()[..., None]
    codes = (scaled.abs()[..., None] - values).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8), (exponent + 127).to(torch.uint8)


def pack_experts(folder):
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        tensors[name + "_blocks"], tensors[name + "_scales"] = (t.contiguous() for t in mxfp4(tensors.pop(name)))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                         "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_mxfp4():
    """Every code under every scale, and what transformers reads."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    blocks = torch.arange(256).view(16, 16).repeat(16, 1).to(torch.uint8).view(256, 1, 16)  # two experts' worth of bytes
    scales = torch.arange(256).to(torch.uint8).view(256, 1)
    pairs = torch.cat([blocks, blocks.roll(3, 0)])[None]
    twice = torch.cat([scales, scales])[None]
    values = convert_moe_packed_tensors(pairs, twice, dtype=torch.float32)
    save_file({"blocks": pairs.contiguous(), "scales": twice.contiguous(), "values": values.transpose(1, 2).contiguous()},
              pathlib.Path(__file__).parent / "mxfp4.safetensors")


def main():
    folder = pathlib.Path(__file__).parent / "families"
    wanted = set(sys.argv[1:])
    if not wanted or "mxfp4" in wanted:
        write_mxfp4()
    for name, config in families():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(len(name) * 131 + sum(map(ord, name)))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for key, parameter in model.named_parameters():
            # Sharp enough attention for windows and positions to matter; norms around what the family calls 1.
            norm = "norm" in key
            mean = (0.0 if name.startswith(("gemma", "qwen3_5", "qwen3_next")) and "linear_attn" not in key else 1.0) if norm else 0.0
            # A state that sums roundings is kept apart from sharp attention: in bfloat16 transformers itself would be off by 4e-2.
            sharpness = 0.1 if name == "qwen3_5" else 0.15
            torch.nn.init.normal_(parameter, mean, 0.1 if norm or key.endswith("bias") else sharpness)
            if key.endswith("sinks"):
                torch.nn.init.normal_(parameter, 1.0, 1.0)
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(out)
        (out / "generation_config.json").unlink(missing_ok=True)
        if name.endswith("mxfp4"):
            pack_experts(out)
        tensors = {}
        for length in LENGTHS:
            # Loaded again for every prompt: float32 of the stored bfloat16.
            layers, logits = record(transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), prompt(length))
            for row in "qkvo":
                tensors[f"{length}.{row}"] = torch.stack([layer[row][kept(length)] for layer in layers]).contiguous()
            tensors[f"{length}.logits"] = logits[kept(length)].contiguous()
        save_file(tensors, folder / f"{name}.safetensors")
        print(name, json.loads((out / "config.json").read_text())["model_type"], sum(f.stat().st_size for f in out.iterdir()), "bytes")


if __name__ == "__main__":
    main()
