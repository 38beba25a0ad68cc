"""Writes dequant.bin: random ggml blocks of every type and the values the PyPI package gguf decodes them to.

    python tests/golden/make_dequant.py      (needs gguf and numpy)

Little-endian, for each type: name (8 bytes, NUL padded), elements (u32), bytes (u32), the blocks, the float32 values.
Bytes are random, so that every code, sign and scale occurs; the half-precision fields are kept finite.
"""
import pathlib
import struct

import gguf
import numpy as np

# name: (elements per block, bytes per block, blocks, offsets of half-precision fields)
TYPES = {
    "F32": (1, 4, 64, None),
    "F16": (1, 2, 128, [0]),
    "BF16": (1, 2, 128, None),
    "Q4_0": (32, 18, 8, [0]),
    "Q4_1": (32, 20, 8, [0, 2]),
    "Q5_0": (32, 22, 8, [0]),
    "Q5_1": (32, 24, 8, [0, 2]),
    "Q8_0": (32, 34, 8, [0]),
    "Q6_K": (256, 210, 4, [208]),
}
random = np.random.default_rng(20240613)
out = bytearray()
for name, (elements, size, count, halves) in TYPES.items():
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    if name in ("F32", "BF16"):
        values = random.normal(size=count).astype(np.float32)
        raw = values.view(np.uint32) >> 16
        blocks = values.view(np.uint8).reshape(count, 4) if name == "F32" else raw.astype(np.uint16).view(np.uint8).reshape(count, 2)
    for offset in halves or []:
        fields = (random.normal(size=count) * 0.05).astype(np.float16)
        if count >= 4:
            fields[:2] = [np.float16(6e-8), np.float16(-3.1e-5)]  # subnormal halves
        blocks[:, offset : offset + 2] = fields.view(np.uint8).reshape(count, 2)
    decoded = gguf.quants.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[name])
    decoded = np.ascontiguousarray(decoded, dtype="<f4").reshape(-1)
    assert decoded.size == elements * count and np.isfinite(decoded).all()
    out += struct.pack("<8sII", name.encode(), decoded.size, blocks.size) + blocks.tobytes() + decoded.tobytes()
pathlib.Path(__file__).with_name("dequant.bin").write_bytes(out)
print(len(out), "bytes")
