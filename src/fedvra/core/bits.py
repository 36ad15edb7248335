"""Whole numbers of a few bits each, one after the other in bytes: the lowest bit first, whatever the machine."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Bytes: TypeAlias = NDArray[np.uint8]
AT_ONCE = 1 << 20
"""Numbers that are spread out into single bits at a time; a multiple of 8, so that stretches end with a byte."""


def packed_bytes(count: int, bits: int) -> int:
    """How many bytes so many numbers of so many bits take."""
    return -(-count * bits // 8)


def packed(codes: Tensor, bits: int) -> Bytes:
    """Numbers in 0..2**bits - 1 as bytes.

    >>> import torch
    >>> packed(torch.tensor([1, 2, 3, 0, 2]), bits=2).tolist()
    [57, 2]
    """
    numbers: NDArray[Any] = codes.numpy()
    if bits in (8, 16, 32):
        return np.frombuffer(numbers.astype(f"<u{bits // 8}").tobytes(), np.uint8)
    if bits in (1, 2, 4):
        per_byte = 8 // bits
        padded = np.zeros((-(-len(numbers) // per_byte), per_byte), np.uint8)
        padded.reshape(-1)[: len(numbers)] = numbers
        found = padded[:, 0]
        for k in range(1, per_byte):
            found = found | (padded[:, k] << np.uint8(k * bits))
        return found
    places = np.arange(bits, dtype=np.uint32)
    parts = [
        np.packbits(((some[:, None] >> places) & 1).astype(np.uint8).reshape(-1), bitorder="little")
        for some in (numbers[k : k + AT_ONCE].astype(np.uint32) for k in range(0, len(numbers), AT_ONCE))
    ]
    return np.concatenate([*parts, np.empty(0, np.uint8)])


def unpacked(data: Bytes, count: int, bits: int) -> NDArray[Any]:
    """The numbers again: uint8 for 8 bits or fewer, int64 for more.

    >>> unpacked(np.array([57, 2], np.uint8), count=5, bits=2).tolist()
    [1, 2, 3, 0, 2]
    """
    if bits == 8:
        return data[:count].copy()
    if bits in (16, 32):
        return np.frombuffer(data.tobytes(), f"<u{bits // 8}").astype(np.int64)
    if bits in (1, 2, 4):
        per_byte = 8 // bits
        mask = np.uint8((1 << bits) - 1)
        columns = [(data >> np.uint8(k * bits)) & mask for k in range(per_byte)]
        return np.stack(columns, axis=1).reshape(-1)[:count]
    weights = np.int64(1) << np.arange(bits, dtype=np.int64)
    found = np.empty(count, np.uint8 if bits < 8 else np.int64)
    stretch = AT_ONCE * bits // 8
    for k in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - k)
        start = k // AT_ONCE * stretch
        single = np.unpackbits(data[start : start + stretch], count=some * bits, bitorder="little")
        found[k : k + some] = single.reshape(some, bits) @ weights
    return found
