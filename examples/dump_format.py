"""Writes the attention dumps that `mxfa sqnr --input` reads: safetensors, without a package."""

import json
import struct
from pathlib import Path

import numpy as np


def to_bf16(values):
    """float array -> uint16 array of BF16 codes, round to nearest even (finite values only)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(codes):
    """uint16 array of BF16 codes -> float32 array."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def cumulative(lengths):
    """Sequence lengths [batch] -> cu_seqlens, int32 [batch + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def write_dump(path, tensors, metadata):
    """Writes `tensors` (name -> array; uint16 arrays are BF16 codes) and string `metadata`."""
    names = {np.dtype(np.uint16): "BF16", np.dtype(np.int32): "I32"}
    header, offset = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)
