#!/usr/bin/env python3
"""published_fit.safetensors: a small raw dump and what the published fit script makes of it, all nine compositions.

    make_published_fit.py OSCAR_REPOSITORY   (needs torch and safetensors)
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
COMPOSITIONS = ["r_h_pbr", "plain", "pbr", "br", "br_h128", "r_h", "h_pbr", "h_r_pbr", "h_pbr_r"]
LAYERS, CHUNKS, Q_HEADS, KV_HEADS, DIM = [3, 7], {0: 6, 2: 30, 10: 42}, 4, 2, 16


def rows(generator, tokens, heads):
    noise = torch.randn(tokens, heads, DIM, generator=generator)
    scale = torch.randn(heads, DIM, generator=generator).mul(0.7).exp()
    return (noise * scale + torch.randn(heads, DIM, generator=generator)).to(torch.bfloat16)


def main():
    script = pathlib.Path(sys.argv[1]) / "rotation" / "compute_kv_rotation.py"
    generator = torch.Generator().manual_seed(20260601)
    tensors = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for layer in LAYERS:
            for name, heads in (("q", Q_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                folder = scratch / "dump" / f"layer_{layer}" / name
                folder.mkdir(parents=True)
                for chunk, tokens in CHUNKS.items():
                    x = rows(generator, tokens, heads)
                    torch.save(x, folder / f"{chunk}.pt")
                    tensors[f"dump.{layer}.{name}.{chunk}"] = x
        for composition in COMPOSITIONS:
            subprocess.run([sys.executable, script, "--dump-path", scratch / "dump", "--output-dir", scratch, "--head-dim", str(DIM),
                            "--method", "qqt_sst", "--composition", composition], check=True, stdout=subprocess.DEVNULL)
            for stem in ("k_rotation_qqt", "v_rotation_sst"):
                file = torch.load(scratch / f"{stem}_{composition}.pt", weights_only=True)
                for layer, entry in file["layers"].items():
                    for part in ("rotation", "eigenvalues"):
                        tensors[f"{stem}_{composition}.{layer}.{part}"] = entry[part].clone()
    save_file(tensors, HERE / "published_fit.safetensors")


if __name__ == "__main__":
    main()
