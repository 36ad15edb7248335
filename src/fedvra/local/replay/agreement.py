"""Whether two recordings, made on different data and at different points, are one and the same program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedvra.core.torch_private import memory, tree_flatten
from fedvra.local.replay.record import Call, CannotReplayError, layout


def same_calls(a: Sequence[Call], b: Sequence[Call]) -> None:
    """Raise unless both recordings are the same program: the same calls, on the same memory, with the same constants."""
    labels: tuple[dict[int, int], dict[int, int]] = ({}, {})
    constants: set[tuple[int, int]] = set()
    for one, other in zip(a, b, strict=False):
        if one.func is not other.func:
            raise CannotReplayError(f"on other data {other.func} runs in place of {one.func}")
        leaves, shape = tree_flatten((one.args, one.kwargs))
        others, other_shape = tree_flatten((other.args, other.kwargs))
        if shape != other_shape or not all(
            _same_argument(v, w, labels, constants) for v, w in zip(leaves, others, strict=True)
        ):
            raise CannotReplayError(f"on other data {one.func} is called with other values")
        for t, u in zip(one.outputs, other.outputs, strict=True):
            if isinstance(t, Tensor) and isinstance(u, Tensor):
                if layout(t) != layout(u):
                    raise CannotReplayError(f"on other data {one.func} gives another shape")
                labels[0].setdefault(memory(t), len(labels[0]))
                labels[1].setdefault(memory(u), len(labels[1]))
    if len(a) != len(b):
        raise CannotReplayError("on other data another number of calls runs")


def _same_argument(v: Any, w: Any, labels: tuple[dict[int, int], dict[int, int]], known: set[tuple[int, int]]) -> bool:
    if not (isinstance(v, Tensor) and isinstance(w, Tensor)):
        return bool(v == w) or v is w or (v != v and w != w)
    if layout(v) != layout(w) or v.dtype != w.dtype:
        return False
    first, second = labels[0].get(memory(v)), labels[1].get(memory(w))
    if first is not None or second is not None:
        return first == second
    pair = (memory(v), memory(w))
    if pair in known or pair[0] == pair[1]:
        return True
    known.add(pair)
    return torch.equal(v, w)
