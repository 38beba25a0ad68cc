"""The other side of interop_test.cpp: reads what the C++ writers made and writes what the C++ readers must take.

    interop.py check FOLDER    every file of the test, compared with what it must hold
    interop.py make FOLDER     the same content, written by torch, safetensors, NumPy and h5py
"""
import sys

import h5py
import numpy as np
import safetensors.torch
import torch

folder = sys.argv[2] + "/"
matrix = torch.arange(6, dtype=torch.float32).reshape(2, 3)
rotation = {"format_version": 1, "objective": "test", "layers": {3: {"layer_id": 3, "rotation": matrix}}}
half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)


def check():
    for options in {"weights_only": True}, {"weights_only": True, "mmap": True}:
        found = torch.load(folder + "a.pt", **options)
        assert list(found) == list(rotation) and found["objective"] == "test", found
        assert torch.equal(found["layers"][3]["rotation"], matrix), found
    tensors = safetensors.torch.load_file(folder + "a.safetensors")
    assert torch.equal(tensors["matrix"], matrix) and torch.equal(tensors["half"], half), tensors
    assert np.array_equal(np.load(folder + "a.npy"), matrix.numpy())
    with h5py.File(folder + "a.h5") as file:
        assert file.attrs["model"] == "späß" and file.attrs["tokens"] == 7 and file["g"].attrs["pi"] == 3.25
        assert np.array_equal(file["g/matrix"], matrix.numpy()) and np.array_equal(file["half"], half.float().numpy())
        assert file["large"].fletcher32 and float(file["large"][:].sum()) == 20000


def make():
    torch.save(rotation, folder + "b.pt")
    safetensors.torch.save_file({"matrix": matrix, "half": half}, folder + "b.safetensors", {"model": "späß"})
    np.save(folder + "b.npy", matrix.numpy())
    with h5py.File(folder + "b.h5", "w") as file:
        file.attrs["model"], file.attrs["tokens"] = "späß", 7
        file.create_dataset("g/matrix", data=matrix.numpy(), compression="gzip")
        file["g"].attrs["fixed"] = np.bytes_("fixed")


{"check": check, "make": make}[sys.argv[1]]()
