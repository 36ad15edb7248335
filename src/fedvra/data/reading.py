"""Reading what people bring: pairs of arrays and torch Datasets, into a pair of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.errors import UsageError, require


def as_pair(source: Any, where: str) -> tuple[Tensor, Tensor]:
    """(inputs, targets) as tensors with one row per sample; integer labels become int64, other types stay as they are.

    Tensors and arrays are shared, not copied. ``where`` names the data in error messages.
    """
    if isinstance(source, torch.utils.data.TensorDataset):
        require(len(source.tensors) == 2, f"{where}: a TensorDataset must hold inputs and targets, and nothing else.")
        inputs, targets = source.tensors
    elif isinstance(source, tuple | list) and len(source) == 2:
        inputs, targets = _tensor(source[0], f"{where}, inputs"), _tensor(source[1], f"{where}, targets")
    elif _is_map_style(source):
        inputs, targets = _read_items(source, where)
    else:
        raise UsageError(
            f"{where}: expected a pair (inputs, targets) or a Dataset with a length, got {type(source).__name__}."
        )
    require(inputs.ndim >= 1 and targets.ndim >= 1, f"{where}: inputs and targets need one row per sample.")
    return inputs, _as_targets(targets)


def _is_map_style(source: Any) -> bool:
    streamed = isinstance(source, tuple | list | torch.utils.data.IterableDataset)
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not streamed


def _read_items(source: Any, where: str) -> tuple[Tensor, Tensor]:
    require(len(source) > 0, f"{where}: there are no samples.")
    inputs, targets = [], []
    for index in range(len(source)):
        item = source[index]
        require(
            isinstance(item, tuple | list) and len(item) == 2,
            f"{where}: sample {index} is {type(item).__name__}, but every sample must be a pair (input, target).",
        )
        inputs.append(_sample(item[0], f"{where}, sample {index}"))
        targets.append(_tensor(item[1], f"{where}, target {index}"))
    shapes = {tuple(each.shape) for each in inputs}
    require(len(shapes) == 1, f"{where}: samples have different shapes, such as {sorted(shapes)[:2]}; resize them.")
    return torch.stack(inputs), torch.stack(targets)


def _sample(value: Any, where: str) -> Tensor:
    if hasattr(value, "getbands"):  # a PIL image: rows, columns, bands -> channels first, as models want it
        pixels = np.array(value)
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
    return _tensor(value, where)


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value)
    require(
        array.dtype.kind in "biuf",
        f"{where}: expected numbers, got {array.dtype}; turn names into integers 0..K-1 first.",
    )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # torch refuses to share read-only memory and negative strides; such arrays are copied.
    shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shareable else array.copy())


def _as_targets(targets: Tensor) -> Tensor:
    if targets.is_floating_point() or targets.is_complex():
        return targets
    labels = targets.to(torch.int64)
    return labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
