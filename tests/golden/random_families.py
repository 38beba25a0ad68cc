#!/usr/bin/env python3
"""Random small checkpoints of every model family, spelled as old and new exporters spell them, and what `transformers` makes of them.

    random_families.py OUT [--seed N] [--cases N] [--family NAME ...] [--every-change]

Writes OUT/NAME/ (a checkpoint), OUT/NAME.safetensors (rows and logits as make_families.py has them) and OUT/cases.tsv: name, what is expected
and what was changed in its config.json. `same`: the model is to be run and to agree. `agrees`: a key was changed that the family may not
have, so the model may also be refused. `refused`: the tensors no longer fit. What transformers itself does not run, or computes another
result for after roundings of 1e-7, is left out. FamiliesRandom of tests/dump/families_test.cpp reads it. Needs torch, transformers, safetensors.
"""
import argparse
import json
import pathlib
import random
import shutil
import sys
import warnings

import torch
import transformers
from safetensors.torch import save_file

sys.dont_write_bytecode = True
from make_families import LENGTHS, kept, pack_experts, prompt, record

WELL_CONDITIONED = 2e-5


def rope(rng, family, dim, context):
    """A rope_scaling and the context it needs."""
    if family == "phi3":
        kinds = ["none", "longrope"]
    elif family == "gemma3_text":
        kinds = ["none", "linear"]
    else:
        kinds = ["none", "none", "linear", "dynamic", "llama3", "yarn", "yarn", "longrope"]
    kind = rng.choice(kinds)
    scaling = {"rope_type": kind}
    if kind == "none":
        return None, context
    if kind in ("linear", "dynamic", "llama3", "yarn"):
        scaling["factor"] = rng.choice([1.5, 2.0, 4.0, 8.0, 32.0])
    if kind == "dynamic":
        scaling["factor"], context = 4.0, 256
    if kind == "llama3":
        scaling |= {"low_freq_factor": rng.choice([1.0, 2.0]), "high_freq_factor": rng.choice([4.0, 8.0])}
    if kind in ("llama3", "yarn", "longrope") and rng.random() < 0.85:
        scaling["original_max_position_embeddings"] = rng.choice([64, 256, 1024])
    if kind == "yarn":
        for key, values in {"beta_fast": [32.0, 16.0, 4], "beta_slow": [1.0, 0.5, 2], "truncate": [True, False], "attention_factor": [1.3, 0.8, None]}.items():
            if rng.random() < 0.3:
                scaling[key] = rng.choice(values)
        if rng.random() < 0.3:
            scaling |= {"mscale": rng.choice([1.0, 0.7, 0.0]), "mscale_all_dim": rng.choice([1.0, 0.4])}
    if kind == "longrope":
        for key, most in (("short_factor", 1.5), ("long_factor", 20.0)):
            scaling[key] = [round(rng.uniform(1, most), 3) for _ in range(dim // 2)]
        if rng.random() < 0.3:
            scaling[rng.choice(["factor", "attention_factor"])] = 1.25
    return scaling, context


def draw(rng, family, default):
    """Keys of a config.json; `default` is a configuration of the family's class that was given nothing."""
    usual = lambda key, *others: rng.choice([getattr(default, key), *others])
    heads_kv, layers = rng.choice([1, 1, 2, 3, 4]), rng.randint(1, 6)
    c = {"num_key_value_heads": heads_kv, "num_attention_heads": heads_kv * rng.randint(1, 8), "num_hidden_layers": layers}
    if rng.random() < 0.15 and default.num_key_value_heads in (2, 4, 8):  # the default of the class, which the file may then leave out
        heads_kv = c["num_key_value_heads"] = default.num_key_value_heads
        c["num_attention_heads"] = heads_kv * rng.randint(1, 4)
    heads = c["num_attention_heads"]
    head_dim = rng.choice([8, 12, 16, 20, 32, 64])
    partial = {"phi3": 1.0, "glm4": 0.5, "glm4_moe": 0.5, "minimax_m2": 1.0, "qwen3_next": 0.25, "qwen3_5_text": 0.25, "qwen3_5_moe_text": 0.25}.get(family)
    if partial is not None:
        head_dim = rng.choice([16, 32, 48, 64])
        partial = rng.choice([partial, partial, 0.25, 0.5, 0.75, 1.0])
    states = hasattr(default, "head_dim") or family == "glm4_moe"
    loose = family not in ("llama", "gemma2", "gemma3_text")  # the others want hidden to be a multiple of the heads
    if states and rng.random() < 0.7:
        if isinstance(getattr(default, "head_dim", None), int) and family not in ("llama", "mistral") and rng.random() < 0.3:
            head_dim = default.head_dim
        c["head_dim"] = head_dim
        c["hidden_size"] = rng.choice([32, 40, 48, 96]) if loose else heads * rng.choice([4, 6, 8])
    else:
        c["hidden_size"] = heads * head_dim
        if isinstance(getattr(default, "head_dim", None), int) and family not in ("llama", "mistral"):
            c["head_dim"] = head_dim
    c |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": rng.choice([96, 100, 131]), "intermediate_size": rng.choice([24, 40, 64, 88]),
          "rms_norm_eps": usual("rms_norm_eps", 1e-6, 1e-5, 1e-3), "tie_word_embeddings": rng.random() < 0.5}
    theta = getattr(default, "default_theta", 1e4)
    theta = 1e4 if isinstance(theta, dict) else theta
    c["rope_theta"] = rng.choice([theta, theta, 1e4, 5e5, 1e6, 300.0])
    scaling, context = rope(rng, family, int(head_dim * (partial or 1)), rng.choice([1024, 2048, default.max_position_embeddings]))
    c["max_position_embeddings"] = context if context < 700 and scaling else max(context, 700)
    if scaling:
        c["rope_scaling"] = scaling
    if family == "phi3" and scaling:
        c["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings", 4096)
    if partial is not None:
        c["partial_rotary_factor"] = partial
    window = rng.choice([1, 17, 50, 130, 400])
    if hasattr(default, "attention_bias"):
        c["attention_bias"] = rng.random() < 0.5
    if hasattr(default, "mlp_bias"):
        c["mlp_bias"] = rng.random() < 0.5
    if family in ("llama", "granite", "mistral", "olmo2", "qwen2", "qwen3") and rng.random() < 0.1:
        c["hidden_act"] = "gelu_pytorch_tanh"
    if family in ("mistral", "mixtral", "phi3"):
        c["sliding_window"] = rng.choice([None, window])
    if family in ("qwen2", "qwen3", "qwen3_moe"):
        c |= {"use_sliding_window": rng.random() < 0.5, "sliding_window": window, "max_window_layers": rng.randint(0, layers)}
    if family in ("qwen2", "qwen3", "gpt_oss", "gemma2", "gemma3_text") and rng.random() < 0.3:
        c["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
        if "use_sliding_window" in c:
            c["use_sliding_window"] = True
    if family == "smollm3":
        if rng.random() < 0.5:
            c |= {"use_sliding_window": rng.random() < 0.7, "sliding_window": window}
        c |= rng.choice([{"no_rope_layer_interval": rng.randint(1, 4)}, {"no_rope_layers": [rng.randint(0, 1) for _ in range(layers)]}, {}])
    if family in ("gemma2", "gemma3_text"):
        c |= {"sliding_window": window, "query_pre_attn_scalar": rng.choice([256, head_dim, 7])}
        c["final_logit_softcapping"] = usual("final_logit_softcapping", 3.0, None)
        if family == "gemma2":
            c["attn_logit_softcapping"] = usual("attn_logit_softcapping", 2.0, None)
    if family == "gemma3_text":
        c["rope_local_base_freq"] = rng.choice([1e4, 500.0])
        if rng.random() < 0.4:
            c["sliding_window_pattern"] = rng.choice([2, 3, 6])
    if family == "gpt_oss":
        c |= {"sliding_window": window, "swiglu_limit": rng.choice([7.0, 0.5]), "intermediate_size": 32, "hidden_size": rng.choice([32, 64])}
    if family == "granite":
        c |= {"embedding_multiplier": rng.choice([1.0, 12.0]), "attention_multiplier": rng.choice([1.0, 0.1]), "residual_multiplier": rng.choice([1.0, 0.22]),
              "logits_scaling": rng.choice([1.0, 8.0])}
    experts = rng.choice([3, 4, 8, 16])
    count = {"mixtral": "num_local_experts", "minimax_m2": "num_local_experts", "gpt_oss": "num_local_experts", "glm4_moe": "n_routed_experts",
             "qwen3_moe": "num_experts", "qwen3_next": "num_experts", "qwen3_5_moe_text": "num_experts"}.get(family)
    if count:
        if rng.random() < 0.1 and getattr(default, count) <= 128:
            experts = getattr(default, count)
        c |= {count: experts, "num_experts_per_tok": rng.choice([1, 2, 3, min(experts, default.num_experts_per_tok)])}
        if hasattr(default, "moe_intermediate_size"):
            c["moe_intermediate_size"] = rng.choice([8, 24])
        if hasattr(default, "norm_topk_prob"):
            c["norm_topk_prob"] = rng.random() < 0.5
        if hasattr(default, "mlp_only_layers"):
            c |= {"mlp_only_layers": sorted(rng.sample(range(layers), rng.choice([0, 0, min(1, layers)]))), "decoder_sparse_step": rng.choice([1, 1, 2])}
        if hasattr(default, "shared_expert_intermediate_size"):
            c["shared_expert_intermediate_size"] = rng.choice([16, 512])
    if family == "glm4_moe":
        c |= {"n_shared_experts": rng.randint(1, 2), "first_k_dense_replace": rng.randint(0, layers), "routed_scaling_factor": rng.choice([1.0, 2.5]),
              "use_qk_norm": rng.random() < 0.5, "n_group": 1, "topk_group": 1}
    if family == "minimax_m2" and rng.random() < 0.5:
        c.pop("partial_rotary_factor")
        c["rotary_dim"] = int(head_dim * partial)
    if family.startswith(("qwen3_next", "qwen3_5")):
        keys = rng.choice([1, 2])
        c |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * rng.randint(1, 3), "linear_key_head_dim": rng.choice([8, 12]),
              "linear_value_head_dim": rng.choice([8, 12]), "linear_conv_kernel_dim": rng.choice([4, 2, 3])}
        c |= rng.choice([{"layer_types": [rng.choice(["full_attention", "linear_attention"]) for _ in range(layers)]}, {"full_attention_interval": rng.randint(1, 4)}, {}])
        c.get("layer_types", [None])[-1:] = ["full_attention"]
    return c


def fill(model, family, rng):
    """Sharp enough attention for windows and positions to matter; norms around what the family calls 1."""
    embedding = rng.choice([0.02, 0.1])
    for key, parameter in model.named_parameters():
        norm = "norm" in key and "weight" in key
        offset = family.startswith(("gemma", "qwen3_5", "qwen3_next")) and "linear_attn" not in key
        if norm:
            torch.nn.init.normal_(parameter, 0.0 if offset else 1.0, 0.1)
        elif key.endswith("sinks"):
            torch.nn.init.normal_(parameter, 1.0, 1.0)
        elif "embed_tokens" in key:
            torch.nn.init.normal_(parameter, 0.0, embedding)
        elif parameter.dim() == 1 or key.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.2)
        else:
            torch.nn.init.normal_(parameter, 0.0, 1.2 / parameter.shape[-1] ** 0.5)
    for key, buffer in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, 0.0, 0.2)


# Keys that change the result of some family, in a file of any.
CHANGES = [
    {"attention_bias": True}, {"attention_bias": False}, {"clip_qkv": 0.1}, {"logits_scaling": 3.0}, {"logit_scale": 0.5}, {"use_sliding_window": True},
    {"use_sliding_window": False}, {"sliding_window": 20}, {"sliding_window": None}, {"max_window_layers": 0}, {"max_window_layers": 1},
    {"attention_multiplier": 0.3}, {"residual_multiplier": 0.5}, {"embedding_multiplier": 2.0}, {"rope_interleaved": True}, {"rope_interleave": True},
    {"norm_eps": 1e-2}, {"layer_norm_eps": 1e-2}, {"rms_norm_eps": 1e-2}, {"num_key_value_heads": ...}, {"num_key_value_heads": None},
    {"head_dim": None}, {"head_dim": ...}, {"rope_theta": 500.0}, {"rope_theta": ...}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": ...},
    {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    {"rope_scaling": None}, {"rope_scaling": ..., "rope_parameters": ...}, {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700.0}}}, {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
    {"hidden_act": "gelu"}, {"hidden_act": "relu"}, {"hidden_act": "gelu_pytorch_tanh"}, {"hidden_act": "silu"}, {"hidden_activation": "silu"},
    {"hidden_activation": "gelu"}, {"query_pre_attn_scalar": 4}, {"query_pre_attn_scalar": ...}, {"final_logit_softcapping": 1.0},
    {"final_logit_softcapping": ...}, {"attn_logit_softcapping": 1.0}, {"attn_logit_softcapping": ...}, {"sliding_window_pattern": 2},
    {"_sliding_window_pattern": 2}, {"layer_types": "full"}, {"layer_types": "by turns"}, {"layer_types": ...}, {"norm_topk_prob": True},
    {"norm_topk_prob": False}, {"norm_topk_prob": ...}, {"routed_scaling_factor": 2.0}, {"num_experts_per_tok": 1}, {"scoring_func": "softmax"},
    {"n_group": 2, "topk_group": 1}, {"use_qk_norm": True}, {"use_qk_norm": False}, {"mlp_only_layers": [0]}, {"no_rope_layers": "first"},
    {"no_rope_layer_interval": 2}, {"swiglu_limit": 0.3}, {"swiglu_alpha": 1.0}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False},
    {"tie_word_embeddings": ...}, {"use_bidirectional_attention": True}, {"is_causal": False}, {"rope_local_base_freq": 300.0}, {"rope_ratio": 2.0},
    {"full_attention_interval": 1}, {"rotary_dim": 8}, {"position_embedding_type": "alibi"}, {"alibi": True}, {"original_max_position_embeddings": 100},
    {"attn_output_gate": False}, {"use_mup": True, "mup_scale": 4.0}, {"pretraining_tp": 2}, {"qk_layernorm": True}, {"mlp_bias": True},
    {"attention_chunk_size": 64}, {"rms_norm_eps": ...}, {"linear_conv_kernel_dim": ...}, {"max_position_embeddings": ...}, {"sliding_window": ...},
    {"num_attention_heads": ...}, {"num_experts_per_tok": ...}, {"decoder_sparse_step": 3}, {"layer_norm_epsilon": 1e-2}, {"embedding_scale": 3.0},
    {"residual_scale": 0.5}, {"attn_temperature_tuning": True}, {"kv_lora_rank": 8}, {"num_kv_shared_layers": 1}, {"use_parallel_residual": True},
]


def change(path, chosen, layers):
    """Applies it to a config.json; its text, "" where nothing changes. `...`: the key is left out."""
    config = json.loads(path.read_text())
    before = json.dumps(config)
    for key, value in chosen.items():
        if value is ...:
            config.pop(key, None)
        elif key == "layer_types":
            kinds = ["full_attention"] if value == "full" else ["sliding_attention", "full_attention"]
            config[key] = [kinds[i % len(kinds)] for i in range(layers)]
        elif value == "first":
            config[key] = [int(i > 0) for i in range(layers)]
        else:
            config[key] = value
    path.write_text(json.dumps(config, indent=2) + "\n")
    if json.dumps(config) == before:
        return ""
    return ", ".join(f"{k} left out" if v is ... else f"{k} = {json.dumps(v)}" for k, v in chosen.items())


def spell(rng, folder, family, drawn, default):
    """config.json as save_pretrained writes it now, or with the keys of former years and without some that are the default of the class."""
    path = folder / "config.json"
    new = json.loads(path.read_text())
    if rng.random() < 0.25:
        return
    config = {"architectures": new["architectures"], "model_type": family, rng.choice(["torch_dtype", "dtype"]): new.get("dtype")}
    usual = default.to_dict() | {"rope_theta": getattr(default, "default_theta", 1e4)}
    for key, value in drawn.items():
        if key in usual and usual[key] == value and rng.random() < 0.6:
            continue
        follows = {"num_key_value_heads": drawn["num_attention_heads"], "head_dim": drawn["hidden_size"] // drawn["num_attention_heads"]}.get(key) == value
        nullable = "None" in str(type(default).__annotations__.get(key))
        config[key] = None if follows and nullable and rng.random() < 0.5 else value
    if "rope_scaling" in config:
        scaling = dict(config.pop("rope_scaling"))
        spelling = rng.choice(["rope_type", "type", "both"] if family != "gemma3_text" else ["rope_type", "both"])  # there `type` is not read
        if spelling != "rope_type":
            scaling["type"] = scaling["rope_type"]
            if family == "phi3":
                scaling["type"] = rng.choice(["su", "longrope", "yarn"])
            if spelling == "type":
                del scaling["rope_type"]
        config["rope_scaling"] = scaling
    elif rng.random() < 0.5:
        config["rope_scaling"] = None
    path.write_text(json.dumps(config, indent=2) + "\n")


def noise(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, values in [*model.named_parameters(), *model.named_buffers()]:
            if values.is_floating_point():
                values.mul_(1 + 1e-7 * torch.randn(values.shape, generator=generator))


def results(folder, lengths=LENGTHS, noises=noise):
    """The tensors of make_families.py, and the largest relative change that roundings make; None where the checkpoint does not fit."""
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model, info = load()
    if info["missing_keys"] == {"lm_head.weight"}:  # of tied embeddings, when the file does not say so: ours to find out
        raise ValueError("no lm_head")
    if info["missing_keys"] or info["mismatched_keys"] or info["unexpected_keys"]:
        return None, 0
    noisy, _ = load()
    noises(noisy)
    dynamic = "dynamic" in str(model.config.rope_parameters)
    tensors, worst = {}, 0.0
    for length in lengths:
        if dynamic:
            model = load()[0]
            noisy = load()[0]
            noises(noisy)
        once, twice = ({**{row: torch.stack([layer[row][kept(length)] for layer in layers]) for row in "qkvo" if layers}, "logits": logits[kept(length)]}
                       for layers, logits in (record(m, prompt(length)) for m in (model, noisy)))
        for row, value in once.items():
            worst = max(worst, float((twice[row] - value).norm() / value.norm().clamp_min(1e-30)))
            tensors[f"{length}.{row}"] = value.contiguous()
    return tensors, worst


def write(folder, family, seed):
    """A checkpoint; the configuration it was made of."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind = transformers.CONFIG_MAPPING[family]
    default = kind()
    drawn = draw(rng, family, default)
    config = kind(**json.loads(json.dumps(drawn)))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill(model, family, rng)
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    model.to(dtype).save_pretrained(folder, max_shard_size=rng.choice(["5GB", "60KB"]))
    (folder / "generation_config.json").unlink(missing_ok=True)
    spell(rng, folder, family, drawn, default)
    if family == "gpt_oss" and (folder / "model.safetensors").exists() and rng.random() < 0.4:
        pack_experts(folder)
    return config


def judge(folder, text, **how):
    """What is expected of a case."""
    tensors, worst = results(folder, **how)
    if tensors is None:
        if not text:
            raise ValueError("the checkpoint lacks tensors")
        return "refused"
    if worst > WELL_CONDITIONED:
        raise ValueError(f"ill-conditioned: {worst:.1e}")
    save_file(tensors, folder.with_suffix(".safetensors"))
    return "agrees" if text else "same"


def one(folder, family, seed, changed):
    config = write(folder, family, seed)
    text, rng = "", random.Random(seed + 1)
    while changed and not text:
        text = change(folder / "config.json", rng.choice(CHANGES), config.num_hidden_layers)
    yield folder.name, judge(folder, text), text


def every_change(folder, family, seed):
    """One checkpoint with every change, on 130 tokens."""
    config = write(folder, family, seed)
    yield folder.name, judge(folder, "", lengths=[130]), ""
    for i, chosen in enumerate(CHANGES):
        other = folder.with_name(f"{folder.name}-{i}")
        shutil.copytree(folder, other, copy_function=lambda a, b: pathlib.Path(b).hardlink_to(a), dirs_exist_ok=True)
        path = other / "config.json"
        text = path.read_text()
        path.unlink()
        path.write_text(text)
        try:
            if text := change(path, chosen, config.num_hidden_layers):
                yield other.name, judge(other, text, lengths=[130], noises=lambda model: None), text
                continue
        except Exception as error:
            left_out(other, text, error)
        shutil.rmtree(other, ignore_errors=True)


def left_out(folder, text, error):
    shutil.rmtree(folder, ignore_errors=True)
    print(folder.name, text, "left out:", str(error).splitlines()[0][:150] if str(error) else repr(error), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=19)
    parser.add_argument("--family", nargs="*", help="model_type of config.json")
    parser.add_argument("--changed", type=float, default=0.4, help="share of the cases with a changed key")
    parser.add_argument("--every-change", action="store_true", help="each checkpoint with every change, on 130 tokens")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # of tiny models
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    models = pathlib.Path(__file__).parents[2] / "libdump/models/models.def"
    known = [line.split('"')[1] for line in models.read_text().splitlines() if line.startswith("OSCAR_")]
    families = [f for f in arguments.family or known if f in transformers.CONFIG_MAPPING]
    arguments.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    with open(arguments.out / "cases.tsv", "a") as table:
        for i in range(arguments.cases):
            family = families[i % len(families)]
            name = f"{family}-{arguments.seed}-{i}"
            folder = arguments.out / name
            shutil.rmtree(folder, ignore_errors=True)
            changed = rng.random() < arguments.changed
            seed = arguments.seed * 100003 + i
            try:
                for case in every_change(folder, family, seed) if arguments.every_change else one(folder, family, seed, changed):
                    table.write("\t".join(case) + "\n")
                    table.flush()
            except Exception as error:  # transformers' own limits
                left_out(folder, "", error)


if __name__ == "__main__":
    main()
