"""The Python side of interop_test.cpp: what torch, safetensors, gguf, h5py and transformers make of our files.

    interop.py check FOLDER            every artifact in it
    interop.py absorb FOLDER OSCAR_FIT tiny Llama and Qwen3 checkpoints through --absorb-v
    interop.py model FOLDER OSCAR_FIT GGUF V_ROTATION   a real model, converted to a directory first
"""
import json
import os
import subprocess
import sys

import torch

LIMIT = 1e-5  # relative, float32


def load(path):
    return torch.load(path, weights_only=True)


def check(folder):
    import gguf
    import h5py
    import safetensors

    path = lambda name: os.path.join(folder, name)
    v1 = load(path("rotations/k_rotation_qqt_r_h_pbr.pt"))
    assert v1["format_version"] == 1 and v1["objective"] == "qqt_r_h_pbr" and v1["source_grouping"] == "layer"
    for layer, entry in v1["layers"].items():
        d = entry["rotation"].shape[0]
        assert entry["layer_id"] == layer and entry["rotation"].dtype == torch.float32 and entry["rotation"].is_contiguous()
        assert (entry["rotation"] @ entry["rotation"].T - torch.eye(d)).abs().max() < 1e-5
        assert (entry["eigenvalues"].diff() >= 0).all()
    v2 = load(path("heads/k_rotation_perhead.pt"))
    assert v2["format_version"] == 2 and v2["layers"][0]["rotation"].dim() == 3
    v3 = load(path("v3.pt"))
    assert v3["format_version"] == 3 and torch.equal(v3["layers"][1]["rotation"], v1["layers"][1]["rotation"])
    with safetensors.safe_open(path("rotations/k_rotation_qqt_r_h_pbr.safetensors"), "pt") as file:
        assert file.metadata()["objective"] == "qqt_r_h_pbr"
        for layer, entry in v1["layers"].items():
            assert torch.equal(file.get_tensor(f"layers.{layer}.rotation"), entry["rotation"])
    moments = load(path("oscar_moments_rank0.pt"))
    assert moments["format_version"] == 2 and moments["layers"][0]["M_q"].dtype == torch.float64
    rows = load(path("oscar_rows_rank0.pt"))
    assert rows["layers"][0]["positions"].dtype == torch.int32 and rows["q_sample_stride"] == 32
    tokens = rows["layers"][0]["k"].shape[0]
    assert rows["layers"][0]["q_samples"].shape[0] == -(-tokens // 32)
    bundle = load(path("nova/codebook.pt"))
    layers, heads, d, _ = bundle["forward"].shape
    unit = bundle["forward"] @ bundle["inverse"]
    assert bundle["forward"].dtype == torch.float64 and (unit - torch.eye(d, dtype=torch.float64)).abs().max() < 1e-6
    assert list(bundle["codebooks"]) == [(l, h) for l in range(layers) for h in range(heads)]
    assert all(word.shape == (256, 4) and word.dtype == torch.float16 for word in bundle["codebooks"][(0, 0)])
    assert [bound[:2] for bound in bundle["bounds"]] == [(start, start + 4) for start in range(0, d, 4)]
    names = [name for name in os.listdir(path("pq")) if "_pq_" in name]
    assert names
    for name in names:
        books = load(path("pq/" + name))
        assert books["n_sub"] * books["sub_dim"] == d and os.path.exists(path(f"pq/{books['rotation']}.pt"))
    with safetensors.safe_open(path("nova/codes.safetensors"), "pt") as file:
        assert file.metadata()["schema"] == "oscar-codes/1" and all(file.get_tensor(key) is not None for key in file.keys())

    base, rotated = gguf.GGUFReader(path("model.gguf")), gguf.GGUFReader(path("rotated.gguf"))
    tensors = {tensor.name: tensor for tensor in rotated.tensors}
    for tensor in base.tensors:
        assert (tensors[tensor.name].data == tensor.data).all(), tensor.name
    for layer, entry in v1["layers"].items():
        stored = torch.from_numpy(tensors[f"blk.{layer}.attn_k_rot.weight"].data.copy()).reshape(d, d)
        # The engine caches keys of this architecture with the rotary halves interleaved.
        key = torch.randn(d)
        cached = torch.stack([key[: d // 2], key[d // 2:]], 1).reshape(-1)
        assert torch.allclose(stored @ cached, key @ entry["rotation"], atol=1e-5)
    assert rotated.get_field("oscar.rotation.k_objective").contents() == "qqt_r_h_pbr"
    with h5py.File(path("stats.h5")) as file:
        assert file.attrs["schema"] == "oscar-stats/1" and file["layers/0000/qq"].shape == (heads, d, d)
    print("checked")


def rotation_file(path, layers, heads, d, per_head):
    draw = lambda: torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0].float()
    entry = lambda layer: {"layer_id": layer, "rotation": torch.stack([draw() for _ in range(heads)]) if per_head else draw()}
    content = {layer: entry(layer) for layer in range(layers)}
    torch.save({"format_version": 2 if per_head else 1, "objective": "sst_r_h_pbr", "source_grouping": "layer", "layers": content}, path)
    return {layer: content[layer]["rotation"] for layer in content}


def unrotate(model, rotations):
    """What an engine does after attention: every query head times the transpose of its KV head's rotation."""
    config = model.config
    group = config.num_attention_heads // config.num_key_value_heads
    for index, layer in enumerate(model.model.layers):
        def hook(module, arguments, rotation=rotations[index]):
            x = arguments[0]
            heads = x.view(*x.shape[:-1], config.num_attention_heads, -1)
            r = rotation if rotation.dim() == 3 else rotation.expand(config.num_key_value_heads, -1, -1)
            return (torch.einsum("bthd,hed->bthe", heads, r.repeat_interleave(group, 0)).reshape(x.shape),)
        layer.self_attn.o_proj.register_forward_pre_hook(hook)


def compare(before, after, ids, rotations, fold):
    from transformers import AutoModelForCausalLM

    def logits(path, rotated):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        if rotated:
            unrotate(model, rotations)
        with torch.no_grad():
            return model(ids).logits.double()

    expected, found = logits(before, False), logits(after, not fold)
    error = ((found - expected).norm() / expected.norm()).item()
    plain = ((logits(after, False) - expected).norm() / expected.norm()).item()
    assert error <= LIMIT, error
    assert fold or plain > 100 * LIMIT, "nothing was rotated"
    return error


def absorb(folder, oscar_fit):
    import transformers

    torch.manual_seed(1)
    common = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    kinds = {
        "llama": (transformers.LlamaConfig(**common, attention_bias=True), transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config(**common, head_dim=32), transformers.Qwen3ForCausalLM),
    }
    ids = torch.randint(0, 320, (2, 40))
    for name, (config, kind) in kinds.items():
        model = kind(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        before = os.path.join(folder, name)
        model.save_pretrained(before, max_shard_size="60KB")
        assert os.path.exists(os.path.join(before, "model.safetensors.index.json"))
        d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        for per_head in (False, True):
            rotation = os.path.join(folder, f"v_{name}_{per_head}.pt")
            rotations = rotation_file(rotation, 3, 2, d, per_head)
            for fold in (False, True):
                after = os.path.join(folder, f"{name}-{per_head}-{fold}")
                subprocess.run([oscar_fit, rotation, "--absorb-v", before, "-o", after, "-q"] + ["--fold-output"] * fold, check=True)
                print(name, "per head" if per_head else "shared", "folded" if fold else "inverse at run time",
                      f"{compare(before, after, ids, rotations, fold):.1e}")


def real(folder, oscar_fit, model_file, rotation):
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    before, after = os.path.join(folder, "hf"), os.path.join(folder, "rotated")
    directory, name = os.path.split(model_file)
    model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
    os.makedirs(before)
    # save_pretrained refuses a model that came from a GGUF, though its weights are dense by now.
    weights = {key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(weights, os.path.join(before, "model.safetensors"), {"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    with open(os.path.join(before, "config.json"), "w") as file:
        json.dump({**config, "dtype": "float32"}, file)
    rotations = {layer: entry["rotation"] for layer, entry in load(rotation)["layers"].items()}
    subprocess.run([oscar_fit, rotation, "--absorb-v", before, "-o", after, "-q"], check=True)
    ids = torch.arange(300, 400).reshape(1, -1)
    print(f"{compare(before, after, ids, rotations, False):.1e}")


{"check": check, "absorb": absorb, "model": real}[sys.argv[1]](*sys.argv[2:])
