"""Writes dequant.bin: ggml blocks of every type and the values that ggml itself decodes them to.

    python tests/golden/make_dequant.py      (needs gguf, numpy and llama-cpp-python, whose libggml-base.so it calls)

The values of the package gguf are checked to be the same bits (NaN as NaN) where it decodes the type: all but Q1_0.
The one difference, not seen here: gguf keeps a signalling NaN of F16 as it is, ggml makes it quiet.

Little-endian, for each type: name (8 bytes, NUL padded), elements (u32), bytes (u32), the blocks, the float32 values.
Bytes are random, so that every code, sign and scale occurs; the half-precision fields of the first blocks are the EDGES.
"""
import ctypes
import importlib.util
import pathlib
import struct

import gguf
import numpy as np

# name: (elements per block, bytes per block, blocks, offsets of half-precision fields)
TYPES = {
    "F32": (1, 4, 64, []),
    "F16": (1, 2, 128, [0]),
    "BF16": (1, 2, 128, []),
    "Q1_0": (128, 18, 12, [0]),
    "Q4_0": (32, 18, 14, [0]),
    "Q4_1": (32, 20, 14, [0, 2]),
    "Q5_0": (32, 22, 14, [0]),
    "Q5_1": (32, 24, 14, [0, 2]),
    "Q8_0": (32, 34, 14, [0]),
    "Q2_K": (256, 84, 11, [80, 82]),
    "Q3_K": (256, 110, 11, [108]),
    "Q4_K": (256, 144, 11, [0, 2]),
    "Q5_K": (256, 176, 11, [0, 2]),
    "Q6_K": (256, 210, 11, [208]),
    "IQ4_NL": (32, 18, 14, [0]),
    "IQ4_XS": (256, 136, 11, [0]),
    "TQ1_0": (256, 54, 11, [52]),
    "TQ2_0": (256, 66, 11, [64]),
    "MXFP4": (32, 17, 24, []),
    "NVFP4": (64, 36, 12, []),
}
# Smallest and largest subnormal, minus zero, largest, infinities, NaNs quiet and signalling, a small and a plain scale.
EDGES = [0x0001, 0x83FF, 0x8000, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFC01, 0x8208, 0x2E66]
E8M0 = [0, 1, 2, 3, 127, 128, 252, 253, 254, 255]
E4M3 = [0, 1, 7, 8, 0x7E, 0x7F, 0x80, 0xFF]

library = ctypes.CDLL(pathlib.Path(importlib.util.find_spec("llama_cpp").origin).with_name("lib") / "libggml-base.so")


def ggml_values(name, blocks, count):
    if name == "F32":
        return blocks.reshape(-1).view(np.float32)
    symbol = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}.get(name)
    if not symbol:  # dequantize_row_q2_K, dequantize_row_iq4_nl
        symbol = "dequantize_row_" + (name[:-1].lower() + "K" if name.endswith("_K") else name.lower())
    function = getattr(library, symbol)
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    values = np.empty(count, np.float32)
    function(blocks.ctypes.data, values.ctypes.data, count)
    return values


def same(a, b):
    return ((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()


random = np.random.default_rng(20240613)
out = bytearray()
for name, (elements, size, count, halves) in TYPES.items():
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for i, offset in enumerate(halves):
        fields = (random.normal(size=count) * 0.05).astype(np.float16).view(np.uint16)
        # A second field takes the edges from the middle on, so that subnormals and infinities meet as well.
        fields[: len(EDGES)] = EDGES[5 * i :] + EDGES[: 5 * i]
        blocks[:, offset : offset + 2] = fields.view(np.uint8).reshape(count, 2)
    if name == "MXFP4":
        blocks[:, 0] = E8M0 + list(random.integers(110, 130, count - len(E8M0)))
    if name == "NVFP4":
        blocks[:2, :4] = np.array(E4M3, np.uint8).reshape(2, 4)
    values = ggml_values(name, blocks, elements * count)
    if name != "Q1_0":
        with np.errstate(all="ignore"):
            decoded = gguf.quants.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[name])
        assert same(values, np.ascontiguousarray(decoded, np.float32).reshape(-1)), name
    out += struct.pack("<8sII", name.encode(), values.size, blocks.size) + blocks.tobytes() + values.tobytes()
pathlib.Path(__file__).with_name("dequant.bin").write_bytes(out)
print(len(out), "bytes")
