#!/usr/bin/env python3
"""oscar-dump beside the bare forward of `transformers` (no lm_head), on the same tokens, in one run.

    dump_bench.py MODEL.gguf IDS.npy [--dtype float32 bfloat16] [--sequences 4] [--length 2048]

Needs torch, transformers, accelerate and gguf. Prints tokens/s of each and their ratio. The time of oscar-dump is the whole
dump() call: embedding, forward, statistics, parts, final file, fsync.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM

TOOL = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/oscar-dump"


def bare(model, sequences):
    best = 1e9
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            for ids in sequences:
                model(torch.from_numpy(ids)[None], use_cache=False)
            best = min(best, time.perf_counter() - start)
    return sequences.size / best


def dump(arguments, tokens, *extra):
    with tempfile.TemporaryDirectory() as folder:
        ids = pathlib.Path(folder) / "ids.npy"
        np.save(ids, tokens)
        best = 1e9
        for i in range(2):
            out = subprocess.run([TOOL, "--model", arguments.model, "--text", ids, "--seq-len", str(tokens.shape[1]), "-q", "--json",
                                  "--threads", str(arguments.threads), "-o", f"{folder}/{i}.h5", *extra], check=True, capture_output=True)
            best = min(best, json.loads(out.stdout)["seconds"])
    return tokens.size / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("ids")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokens = np.load(arguments.ids).astype(np.int64).reshape(-1)[:arguments.sequences * arguments.length].reshape(arguments.sequences, -1)
    model = AutoModelForCausalLM.from_pretrained(arguments.model.parent, gguf_file=arguments.model.name, dtype=torch.float32).model
    for dtype in arguments.dtype:
        base = bare(model.to(getattr(torch, dtype)), tokens)
        print(f"{dtype}: transformers, bare forward {base:.0f} tokens/s")
        for name, extra in [("no score statistics", ["--no-scores"]), ("scores of 1/4 of the queries", ["--score-queries", "1/4"]), ("every statistic", [])]:
            rate = dump(arguments, tokens, "--dtype", dtype, *extra)
            print(f"{dtype}: oscar-dump, {name} {rate:.0f} tokens/s, {rate / base:.2f} x", flush=True)


if __name__ == "__main__":
    main()
