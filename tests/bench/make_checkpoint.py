#!/usr/bin/env python3
"""A checkpoint of random BF16 weights, Llama family, of any size: make_checkpoint.py DIR [--layers 48] [--hidden 2048] ...

For runs that need a model larger than memory (memory_bench.py). Written shard by shard from a pool of random numbers, so the
script itself takes little memory; needs numpy. Prints the bytes written. Text goes in as token ids: ids.npy beside it.
"""
import argparse
import json
import pathlib

import numpy as np


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Weights:
    """Slices of one pool, each from another place."""

    def __init__(self, seed, sigma=0.02, size=1 << 22):
        self.random = np.random.default_rng(seed)
        self.pool = bf16(self.random.normal(0, sigma, size))

    def write(self, out, count):
        while count > 0:
            part = self.pool[self.random.integers(0, self.pool.size // 2):][:count]
            out.write(part.tobytes())
            count -= part.size


def write_shard(path, shapes, weights):
    header, offset = {}, 0
    for name, shape in shapes:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for name, shape in shapes:
            if name.endswith("norm.weight"):
                out.write(bf16(np.ones(shape)).tobytes())
            else:
                weights.write(out, int(np.prod(shape)))
    return offset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    for name, default in (("layers", 48), ("hidden", 2048), ("intermediate", 5632), ("heads", 32), ("kv-heads", 4),
                          ("head-dim", 64), ("vocabulary", 32000), ("tokens", 8192), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    a = parser.parse_args()
    a.directory.mkdir(parents=True, exist_ok=True)
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    weights, index, total = Weights(a.seed), {}, 0
    layer = [("input_layernorm", (a.hidden,)), ("post_attention_layernorm", (a.hidden,)),
             ("self_attn.q_proj", (q, a.hidden)), ("self_attn.k_proj", (kv, a.hidden)), ("self_attn.v_proj", (kv, a.hidden)),
             ("self_attn.o_proj", (a.hidden, q)), ("mlp.gate_proj", (a.intermediate, a.hidden)),
             ("mlp.up_proj", (a.intermediate, a.hidden)), ("mlp.down_proj", (a.hidden, a.intermediate))]
    shards = [[("model.embed_tokens.weight", (a.vocabulary, a.hidden)), ("model.norm.weight", (a.hidden,))]]
    for first in range(0, a.layers, 8):
        shards.append([(f"model.layers.{i}.{name}.weight", shape) for i in range(first, min(first + 8, a.layers))
                       for name, shape in layer])
    for number, shapes in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        total += write_shard(a.directory / name, shapes, weights)
        index.update({tensor: name for tensor, _ in shapes})
    (a.directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    (a.directory / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": a.hidden,
        "intermediate_size": a.intermediate, "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim, "vocab_size": a.vocabulary, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 4096, "tie_word_embeddings": True, "hidden_act": "silu",
        "torch_dtype": "bfloat16"}))
    np.save(a.directory / "ids.npy", np.random.default_rng(a.seed).integers(0, a.vocabulary, a.tokens, dtype=np.int32))
    print(total)


if __name__ == "__main__":
    main()
