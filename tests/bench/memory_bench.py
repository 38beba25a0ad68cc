#!/usr/bin/env python3
"""A model larger than the memory of the process: memory_bench.py DIR --memory 1G [--tokens 4096] [--seq-len 512] [--cgroup PATH]

Runs oscar-dump over the checkpoint of make_checkpoint.py with the bound and without, and prints for each the announced and the
measured peak, tokens/s and CPU time. The bound is also set from outside, with what kills a process that exceeds it: a memory cgroup made
in --cgroup (v1 memory.limit_in_bytes or v2 memory.max; page cache counts there, and is reclaimed). Exits 1 when the peak
is above the plan by more than a tenth.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Cgroup:
    def __init__(self, parent, limit):
        self.path = pathlib.Path(parent) / f"oscar-bench-{os.getpid()}"
        self.path.mkdir()
        v1 = self.path / "memory.limit_in_bytes"
        (v1 if v1.exists() else self.path / "memory.max").write_text(str(limit))

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)


def run(binary, directory, a, memory, cgroup):
    with tempfile.TemporaryDirectory(dir=a.scratch) as scratch:
        command = [binary, "--model", directory, "--text", f"{directory}/ids.npy", "--seq-len", str(a.seq_len), "--tokens",
                   str(a.tokens), "--threads", str(a.threads), "--score-queries", "1/4", "--sink", "4", "--recent", "64",
                   "--json", "-o", f"{scratch}/stats.h5"] + (["--memory", memory] if memory else [])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=cgroup.enter if cgroup else None)
        out, err = process.communicate()
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit code {process.returncode}\n{err}")
        summary = json.loads(out)
        rate = float(re.search(r"([\d.]+) tokens/s", err).group(1))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return summary["memory"], summary["memory"]["measured"], rate, cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--binary", default="build/release/bin/oscar-dump")
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--cgroup", help="a folder of a memory cgroup that may be written")
    parser.add_argument("--scratch", help="where outputs and the spilled file lie")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    limit = int(a.memory[:-1]) * UNITS[a.memory[-1]]
    size = sum(path.stat().st_size for path in pathlib.Path(a.directory).glob("*.safetensors"))
    print(f"checkpoint {size / 2**20:.0f} MiB, {size / limit:.1f} x the bound of {limit / 2**20:.0f} MiB")
    cgroup = Cgroup(a.cgroup, limit) if a.cgroup else None
    ok = True
    for name, memory in (("bounded", a.memory), ("to spare", None)):
        plan, peak, rate, cpu = run(a.binary, a.directory, a, memory, cgroup if memory else None)
        print(f"{name:10} planned {plan['peak'] / 2**20:6.0f} MiB, peak {peak / 2**20:6.0f} MiB, {rate:7.1f} tokens/s, {cpu:.0f} s of "
              f"CPU; block "
              f"{plan['block']}, overlap {plan['overlap']}, spilled {plan['spilled'] / 2**20:.0f} MiB")
        ok = ok and peak <= 1.1 * plan["peak"]
    if cgroup:
        cgroup.close()
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
