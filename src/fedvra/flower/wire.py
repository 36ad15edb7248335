"""Vectors on the wire where messages are compressed: bytes in place of numbers, and numbers again."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Array
from torch import Tensor

from fedvra.compress import parse_compressor
from fedvra.core.block import Broadcast
from fedvra.core.compressor import Compressor
from fedvra.core.streams import Purpose, stream
from fedvra.flower.protocol import BadMessageError, Order, read_array


def read_vector(array: Array, compress: Compressor | None, like: Tensor) -> Tensor:
    """The vector in an array, of the length and dtype of ``like`` where it is compressed."""
    found = read_array(array)
    if compress is None:
        return found
    if found.dtype != torch.uint8:
        raise BadMessageError(f"it holds {found.dtype}, expected the bytes of {compress.text()}")
    return compress.decode(found, like.numel(), like.dtype)


def down(sent: Broadcast, compress: Compressor, seed: int, round: int, dual: bool) -> dict[str, Tensor]:
    """x0, and lam where there is one to send, as bytes; see ``Broadcast.rounded``, which draws the same numbers."""
    rng = stream(seed, Purpose.ROUNDING, round)
    vectors = {"x0": sent.x0, **({"lam": sent.lam} if dual else {})}
    return {name: compress.encode(compress.shrink(v, rng), v.numel()) for name, v in vectors.items()}


def received(order: Order, like: Tensor) -> Mapping[str, Tensor]:
    """What an order brought, with x0 and lam as numbers; ``like`` is a model of that size."""
    if not order.compress_down:
        return order.arrays
    compress = parse_compressor(order.compress_down)
    return {
        name: compress.decode(array, like.numel(), like.dtype) if name in ("x0", "lam") else array
        for name, array in order.arrays.items()
    }
