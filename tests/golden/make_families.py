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
from safetensors.torch import save_file
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.llama.modeling_llama import eager_attention_forward

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


def prompt(length):
    return torch.tensor([[(7 * i * i + 3 * i + length) % 96 for i in range(length)]])


def kept(length):
    return sorted({0, length // 2, length - 1})


def record(model, ids):
    entries = {}

    def recording(module, query, key, value, mask, **kwargs):
        out, weights = eager_attention_forward(module, query, key, value, mask, **kwargs)
        rows = {"q": query[0].transpose(0, 1), "k": key[0].transpose(0, 1), "v": value[0].transpose(0, 1), "o": out[0]}
        entries[module.layer_idx] = rows
        return out, weights

    AttentionInterface.register("recording", recording)
    AttentionMaskInterface.register("recording", eager_mask)
    model.set_attn_implementation("recording")
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0]
    return [entries[i] for i in range(len(entries))], logits


def main():
    folder = pathlib.Path(__file__).parent / "families"
    wanted = set(sys.argv[1:])
    for name, config in families():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(len(name) * 131 + sum(map(ord, name)))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for key, parameter in model.named_parameters():
            # Sharp enough attention for windows and positions to matter; norms around what the family calls 1.
            norm = "norm" in key
            mean = (0.0 if name == "gemma3" else 1.0) if norm else 0.0
            torch.nn.init.normal_(parameter, mean, 0.1 if norm or key.endswith("bias") else 0.15)
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(out)
        (out / "generation_config.json").unlink(missing_ok=True)
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
