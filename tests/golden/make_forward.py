#!/usr/bin/env python3
"""Golden file of the forward: SmolLM2-135M-Instruct, its GGUF dequantised and run by `transformers` in float32.

    make_forward.py MODEL.gguf IDS.npy        writes smollm2_forward.safetensors beside this script

512 tokens of real text (the first of IDS). Kept, to stay small: three positions of every layer's post-RoPE q, k, v and
attention output, and every 24th logit of the same positions. Needs torch, transformers, accelerate, gguf, safetensors.
"""
import pathlib
import sys

import numpy as np
import torch
import transformers.models.llama.modeling_llama as llama
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

POSITIONS, TOKENS, LOGIT_STEP = [7, 255, 511], 512, 24


def record(model, ids):
    """q, k, v, o of every layer, each (T, heads, D), and the logits (T, V)."""
    layers = [dict() for _ in model.model.layers]
    rotary = llama.apply_rotary_pos_emb
    calls = iter(layers)

    def recording_rotary(q, k, *args, **kwargs):
        q, k = rotary(q, k, *args, **kwargs)
        entry = next(calls)
        entry["q"], entry["k"] = q[0].transpose(0, 1), k[0].transpose(0, 1)
        return q, k

    llama.apply_rotary_pos_emb = recording_rotary
    head_dim = model.config.head_dim
    for entry, layer in zip(layers, model.model.layers):
        layer.self_attn.v_proj.register_forward_hook(
            lambda m, i, out, e=entry: e.__setitem__("v", out[0].unflatten(1, (-1, head_dim))))
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda m, i, e=entry: e.__setitem__("o", i[0][0].unflatten(1, (-1, head_dim))))
    with torch.no_grad():
        logits = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0]
    llama.apply_rotary_pos_emb = rotary
    return layers, logits


def main():
    path = pathlib.Path(sys.argv[1])
    ids = np.load(sys.argv[2]).reshape(-1)[:TOKENS].astype(np.int32)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    layers, logits = record(model, ids)
    tensors = {name: torch.stack([entry[name][POSITIONS] for entry in layers]).numpy().copy() for name in "qkvo"}
    tensors["logits"] = logits[POSITIONS, ::LOGIT_STEP].numpy().copy()
    tensors["ids"] = ids
    tensors["positions"] = np.array(POSITIONS, dtype=np.int32)
    save_file(tensors, pathlib.Path(__file__).parent / "smollm2_forward.safetensors")


if __name__ == "__main__":
    main()
