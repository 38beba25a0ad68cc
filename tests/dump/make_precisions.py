"""A llama GGUF model as Hugging Face directories in several precisions: make_precisions.py MODEL.gguf OUT

Writes OUT/f32, OUT/bf16, OUT/f16 (as transformers would save them) and OUT/fp8: matrices of the layers in e4m3 with a scale a block of
128 x 128 (weight_scale_inv), the rest BF16. Weights are those that the `gguf` package dequantises, q and k put back into halves.
"""
import json
import pathlib
import sys

import gguf
import torch
from safetensors.torch import save_file

BLOCK = 128


def field(reader, name):
    return reader.fields[name].contents()


def halves(weight, heads):
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(reader, config):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    found = {tensor.name: tensor for tensor in reader.tensors}
    out = {}
    wanted = ["model.embed_tokens", "model.norm"] + [
        f"model.layers.{i}.{part}" for i in range(config["num_hidden_layers"])
        for part in ("input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                     "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")]
    for name in wanted:
        tensor = found[names.get_name(name) + ".weight"]
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if "q_proj" in name or "k_proj" in name:
            values = halves(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        out[name + ".weight"] = values
    return out


def fp8(tensors):
    out = {}
    for name, weight in tensors.items():
        if not name.endswith("_proj.weight"):
            out[name] = weight.to(torch.bfloat16)
            continue
        rows, columns = -(-weight.shape[0] // BLOCK), -(-weight.shape[1] // BLOCK)
        padded = torch.zeros(rows * BLOCK, columns * BLOCK)
        padded[:weight.shape[0], :weight.shape[1]] = weight
        scales = padded.view(rows, BLOCK, columns, BLOCK).abs().amax(dim=(1, 3)).clamp_min(1e-12) / 448
        codes = padded / scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        out[name] = codes[:weight.shape[0], :weight.shape[1]].to(torch.float8_e4m3fn).contiguous()
        out[name.replace(".weight", ".weight_scale_inv")] = scales.contiguous()
    return out


def main(model, out):
    reader = gguf.GGUFReader(model)
    heads = int(field(reader, "llama.attention.head_count"))
    hidden = int(field(reader, "llama.embedding_length"))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
              "intermediate_size": int(field(reader, "llama.feed_forward_length")),
              "num_hidden_layers": int(field(reader, "llama.block_count")), "num_attention_heads": heads,
              "num_key_value_heads": int(field(reader, "llama.attention.head_count_kv")), "head_dim": hidden // heads,
              "rms_norm_eps": float(field(reader, "llama.attention.layer_norm_rms_epsilon")),
              "rope_theta": float(field(reader, "llama.rope.freq_base")),
              "max_position_embeddings": int(field(reader, "llama.context_length")), "tie_word_embeddings": True}
    tensors = tensors_of(reader, config)
    config["vocab_size"] = tensors["model.embed_tokens.weight"].shape[0]
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "fp8": None}
    for kind, dtype in kinds.items():
        folder = pathlib.Path(out) / kind
        folder.mkdir(parents=True)
        own = dict(config, torch_dtype="bfloat16" if dtype is None else str(dtype).removeprefix("torch."))
        if dtype is None:
            own["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                          "weight_block_size": [BLOCK, BLOCK]}
        (folder / "config.json").write_text(json.dumps(own, indent=1))
        save_file(fp8(tensors) if dtype is None else {name: t.to(dtype).contiguous() for name, t in tensors.items()},
                  folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(*sys.argv[1:])
