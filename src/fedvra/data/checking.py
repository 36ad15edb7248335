"""What is wrong with data, said before anybody works on them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError, require
from fedvra.data import trees
from fedvra.data.reading import is_whole
from fedvra.data.trees import Tree

if TYPE_CHECKING:
    from fedvra.data.dataset import Dataset
    from fedvra.data.lazy import Reader

IGNORED = -100
"""The label of samples that a loss leaves out: the default of torch's ``ignore_index``."""


def checked(dataset: Dataset) -> Dataset:
    """The same data set with ``classes`` filled in, or a UsageError that names what is wrong with it."""
    check = _check_part if dataset.collate is None else _check_samples
    if dataset.reader is None:
        check(dataset, dataset.inputs, dataset.targets, "the data")
    else:
        _check_reader(dataset, dataset.reader, "the data")
    labels = dataset.labels
    if labels is not None and dataset.classes is None:
        dataset = replace(dataset, classes=max(1, int(labels.max()) + 1))
    if labels is not None:
        _check_labels(labels, dataset.classes, "the data")
    if (dataset.test_inputs is None) != (dataset.test_targets is None):
        raise UsageError("test inputs and test targets go together: give both or neither.")
    if dataset.test_reader is not None:
        _check_reader(dataset, dataset.test_reader, "the test data")
    elif dataset.test_targets is not None:
        check(dataset, dataset.test_inputs, dataset.test_targets, "the test data")
    if dataset.test_targets is not None:
        if dataset.collate is None:
            _check_alike(dataset)
        if labels is not None and not _unread(dataset.test_targets):
            _check_labels(labels_of(dataset.test_targets), dataset.classes, "the test data")
    return dataset


def _check_part(dataset: Dataset, inputs: Tree, targets: Tree, where: str) -> None:
    parts = [*trees.named(inputs, "inputs"), *trees.named(targets, "targets")]
    if all(isinstance(each, Tensor) and each.ndim for each in (inputs, targets)):
        require(
            len(inputs) == len(targets),
            f"{where}: {len(inputs)} inputs and {len(targets)} targets; give exactly one target per input.",
        )
    require(trees.common_rows(parts, where) > 0, f"{where}: there are no samples.")
    require(
        not isinstance(inputs, dict) or all(isinstance(name, str) for name in inputs),
        f"{where}: inputs in a dict are given to the model by name, model(**inputs), so its keys must be names.",
    )
    for path, values in parts:
        if values.is_floating_point():
            bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
            require(
                not bool(bad.any()),
                f"{where}: the {path} hold NaN or infinity in {int(bad.sum())} of {len(values)} samples "
                f"(first: sample {int(bad.int().argmax())}); remove or fill them.",
            )
    dataset.transform.check(inputs, where)


def _check_samples(dataset: Dataset, inputs: Any, targets: Any, where: str) -> None:
    """What can be known of samples that only ``collate`` understands: it is tried on the first."""
    require(callable(dataset.collate), f"collate must be a function of a list of samples, got {dataset.collate!r}.")
    require(
        all(isinstance(each, tuple | list | Tensor) for each in (inputs, targets)) and len(inputs) == len(targets) > 0,
        f"{where}: with collate, inputs and targets are lists of the same length, one entry per sample.",
    )
    dataset.transform.check(dataset.batch_of(inputs, targets, slice(0, 1))[0], where)


def _check_reader(dataset: Dataset, reader: Reader, where: str) -> None:
    """What can be known of data that nobody has read: that there are some, and what the first sample looks like."""
    require(len(reader) > 0, f"{where}: there are no samples.")
    dataset.transform.check(reader.take(slice(0, 1))[0], where)


def _unread(tree: Tree) -> bool:
    return isinstance(tree, Tensor) and tree.is_meta


def _check_alike(dataset: Dataset) -> None:
    """Test inputs must look like training inputs."""
    shown, known = (
        [(path, list(leaf.shape[1:])) for path, leaf in trees.named(part, "inputs")]
        for part in (dataset.test_inputs, dataset.inputs)
    )
    require(
        [path for path, _ in shown] == [path for path, _ in known],
        f"the test inputs are {', '.join(path for path, _ in shown)} and the training inputs "
        f"{', '.join(path for path, _ in known)}; they must agree.",
    )
    for (path, shape), (_, expected) in zip(shown, known, strict=True):
        which = "" if path == "inputs" else f" ({path})"
        require(
            shape == expected,
            f"a test sample has shape {shape} and a training sample {expected}{which}; they must agree.",
        )


def labels_of(targets: Tree) -> Ints | None:
    """One class per sample, where that is what the targets are."""
    if _unread(targets):
        return None
    if isinstance(targets, Tensor):
        return targets.numpy().astype(np.int64, copy=False) if targets.ndim == 1 and is_whole(targets) else None
    if isinstance(targets, list):  # of samples to collate: in a tree, a list holds tensors of one dimension at least
        given = [each.item() if isinstance(each, Tensor | np.generic) and each.ndim == 0 else each for each in targets]
        return np.array(given, dtype=np.int64) if all(type(each) is int for each in given) else None
    return None


def _check_labels(labels: Ints | None, classes: int | None, where: str) -> None:
    assert classes is not None
    if labels is None:
        raise UsageError(f"{where}: targets must be one integer label per sample, as in the training data.")
    used = labels[labels != IGNORED]
    low, high = (int(used.min()), int(used.max())) if len(used) else (0, 0)
    require(
        low >= 0 and high < classes,
        f"{where}: labels run from {low} to {high}, outside 0..{classes - 1}: "
        "renumber them from 0, or say how many classes there are (classes=...).",
    )
