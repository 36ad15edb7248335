"""Reading what people bring: arrays, trees of them and torch Datasets, into trees of tensors; samples to collate into lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.errors import UsageError, require
from fedvra.data.trees import Tree, rebuilt


def as_pair(source: Any, where: str) -> tuple[Tree, Tree]:
    """(inputs, targets) as trees of tensors with one row per sample.

    A vector of integer targets becomes int64, as losses want labels; everything else stays as it is. Tensors and arrays are
    shared, not copied. ``where`` names the data in error messages.
    """
    if isinstance(source, torch.utils.data.TensorDataset):
        require(
            len(source.tensors) == 2,
            f"{where}: a TensorDataset must hold inputs and targets, and nothing else; give ((a, b), targets) for two inputs.",
        )
        inputs, targets = source.tensors
    elif isinstance(source, tuple | list) and len(source) == 2:
        inputs, targets = source
    elif is_map_style(source):
        return stacked(*as_samples(source, where), where)
    else:
        refuse_streams(source, where)
        raise UsageError(
            f"{where}: expected a pair (inputs, targets) or a Dataset with a length, got {type(source).__name__}."
        )
    return _tree(inputs, f"{where}, inputs"), as_targets(_tree(targets, f"{where}, targets"))


def stacked(inputs: list[Any], targets: list[Any], where: str) -> tuple[Tree, Tree]:
    """Samples of one kind as trees of tensors with one row for each."""
    found = _stacked(inputs, where, "sample"), _stacked(targets, where, "target")
    return _tree(found[0], f"{where}, inputs"), as_targets(_tree(found[1], f"{where}, targets"))


def as_samples(source: Any, where: str, numbers: Sequence[int] | None = None) -> tuple[list[Any], list[Any]]:
    """The inputs and the targets of a sequence of samples (input, target), as they are; all, or those with these numbers."""
    refuse_streams(source, where)
    require(
        isinstance(source, tuple | list) or is_map_style(source),
        f"{where}: expected a list or a Dataset of samples (input, target), got {type(source).__name__}.",
    )
    require(len(source) > 0, f"{where}: there are no samples.")
    inputs, targets = [], []
    for index in range(len(source)) if numbers is None else numbers:
        item = source[index]
        require(
            isinstance(item, tuple | list) and len(item) == 2,
            f"{where}: sample {index} is {type(item).__name__}, but every sample must be a pair (input, target).",
        )
        inputs.append(item[0])
        targets.append(item[1])
    return inputs, targets


def refuse_streams(source: Any, where: str) -> None:
    """An IterableDataset cannot be partitioned among clients."""
    require(
        not isinstance(source, torch.utils.data.IterableDataset),
        f"{where}: an IterableDataset gives its samples in its own order and cannot be asked for sample 17, so they can "
        "neither be assigned to clients nor drawn at random; give a Dataset with a length, or a function per client "
        "(fv.per_client).",
    )


def is_map_style(source: Any) -> bool:
    """Whether it can be asked for sample k of n, as a torch Dataset."""
    other = isinstance(source, tuple | list | Mapping | torch.utils.data.IterableDataset)
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not other


def _is_node(value: Any) -> bool:
    """Whether it is a tree of arrays, rather than numbers in lists, which are one array."""
    if isinstance(value, tuple | list):
        return any(_is_node(each) or getattr(each, "ndim", 0) > 0 for each in value)
    return isinstance(value, Mapping)


def tree_of(value: Any, where: str, leaf: Callable[[Any, str], Any]) -> Tree:
    """The same tree with ``leaf`` of every array in it and its name."""
    if not _is_node(value):
        return leaf(value, where)
    if isinstance(value, Mapping):
        return {name: tree_of(each, f"{where}[{name!r}]", leaf) for name, each in value.items()}
    return rebuilt(value, [tree_of(each, f"{where}[{k}]", leaf) for k, each in enumerate(value)])


def rows_of(value: Any, where: str) -> Tensor:
    """An array with one row per sample."""
    tensor = _tensor(value, where)
    require(tensor.ndim >= 1, f"{where}: there must be one row per sample, got a single number.")
    return tensor


def _tree(value: Any, where: str) -> Tree:
    return tree_of(value, where, rows_of)


def _stacked(samples: list[Any], where: str, what: str, path: str = "") -> Tree:
    """Samples that are trees of one kind -> one tree with a row for each."""
    first = samples[0]
    if not _is_node(first):
        rows = [_sample(each, f"{where}, {what} {index}{path}") for index, each in enumerate(samples)]
        shapes = {tuple(each.shape) for each in rows}
        require(
            len(shapes) == 1,
            f"{where}: {what}s{path} have different shapes, such as {sorted(shapes)[:2]}; resize or pad them, or say with "
            "collate=... how a batch is made of them.",
        )
        return torch.stack(rows)
    names = list(first) if isinstance(first, Mapping) else list(range(len(first)))
    for index, each in enumerate(samples):
        alike = isinstance(each, type(first)) and len(each) == len(first)
        require(
            alike and (not isinstance(each, Mapping) or all(name in each for name in names)),
            f"{where}: {what} {index}{path} is not made up as {what} 0 is; give all the same keys, or use collate=...",
        )
    columns = [_stacked([each[name] for each in samples], where, what, f"{path}[{name!r}]") for name in names]
    return dict(zip(names, columns, strict=True)) if isinstance(first, Mapping) else rebuilt(first, columns)


def _sample(value: Any, where: str) -> Tensor:
    if hasattr(value, "getbands"):  # a PIL image: rows, columns, bands -> channels first, as models want it
        pixels = np.array(value)
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
    return _tensor(value, where)


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError:
        raise UsageError(
            f"{where}: its rows have different lengths; pad them, or say with collate=... how a batch is made of them."
        ) from None
    require(
        array.dtype.kind in "biuf",
        f"{where}: expected numbers, got {array.dtype}; turn names into integers 0..K-1 first.",
    )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # torch refuses to share read-only memory and negative strides; such arrays are copied.
    shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shareable else array.copy())


def as_targets(targets: Tree) -> Tree:
    """A vector of integers becomes int64, as losses want labels."""
    is_labels = isinstance(targets, Tensor) and targets.ndim == 1 and is_whole(targets)
    return targets.to(torch.int64) if is_labels else targets


def is_whole(values: Tensor) -> bool:
    """Whether the dtype holds whole numbers; truth values are none."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
