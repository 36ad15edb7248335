"""Trees of tensors: what inputs and targets are made of. A single tensor is the simplest one, and the fast one.

Dicts, tuples and lists, nested at will, whose leaves share their first dimension, one row per sample. Everything that knows
how torch walks through such trees is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree

from fedvra.core.cohort import Ints
from fedvra.core.errors import require

Tree: TypeAlias = Any
"""A tensor, or a dict, tuple or list of trees."""


def map(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same tree with ``function`` of every tensor in it; leaves of other kinds stay as they are."""
    if isinstance(tree, Tensor):
        return function(tree)
    return _pytree.tree_map_only(Tensor, function, tree)


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree with ``function`` of every leaf, tensors or not."""
    return _pytree.tree_map(function, tree)


def join(parts: list[Tree]) -> Tree:
    """Trees of one kind, one after the other.

    >>> join([{"x": torch.zeros(1)}, {"x": torch.ones(2)}])
    {'x': tensor([0., 1., 1.])}
    """
    return _pytree.tree_map(lambda *each: torch.cat(each), *parts)


def nbytes(tree: Tree) -> int:
    """Bytes of all tensors in it."""
    return sum(leaf.nbytes for leaf in leaves(tree) if isinstance(leaf, Tensor))


def leaves(tree: Tree) -> list[Any]:
    """The leaves in order.

    >>> len(leaves({"ids": torch.zeros(4, 2), "more": (torch.zeros(4), torch.zeros(4))}))
    3
    """
    return [tree] if isinstance(tree, Tensor) else _pytree.tree_leaves(tree)


def named(tree: Tree, name: str) -> list[tuple[str, Any]]:
    """The leaves with their paths, as one would write them in Python.

    >>> [path for path, _ in named({"ids": 1, "more": (2, 3)}, "inputs")]
    ["inputs['ids']", "inputs['more'][0]", "inputs['more'][1]"]
    """
    if isinstance(tree, Tensor):
        return [(name, tree)]
    return [(name + _pytree.keystr(path), leaf) for path, leaf in _pytree.tree_flatten_with_path(tree)[0]]


def common_rows(parts: Iterable[tuple[str, Any]], where: str) -> int:
    """The first dimension that all of these leaves share, or a UsageError that names the one that differs."""
    known: tuple[str, int] | None = None
    for path, leaf in parts:
        require(isinstance(leaf, Tensor), f"{where}: {path} must be a tensor, got {type(leaf).__name__}.")
        require(leaf.ndim >= 1, f"{where}: {path} is a single number; give it one row per sample.")
        known = known or (path, len(leaf))
        require(
            len(leaf) == known[1],
            f"{where}: {path} has {len(leaf)} rows and {known[0]} has {known[1]}; every array needs one row per sample "
            "(stack lists of samples first, or keep them as they are with collate=...).",
        )
    require(known is not None, f"{where}: there are no arrays.")
    assert known is not None
    return known[1]


def count(tree: Tree) -> int:
    """How many samples: the common first dimension.

    >>> count((torch.zeros(4, 2), torch.zeros(4)))
    4
    """
    return len(tree) if isinstance(tree, Tensor) else common_rows(named(tree, "tree"), "a tree of tensors")


def take(tree: Tree, rows: Ints | slice) -> Tree:
    """These rows of every leaf: copies, or views where ``rows`` is a slice.

    >>> take({"x": torch.arange(4), "y": torch.arange(4) * 10}, np.array([3, 1]))
    {'x': tensor([3, 1]), 'y': tensor([30, 10])}
    """
    if isinstance(rows, slice):
        return map(lambda leaf: leaf[rows], tree)
    index = torch.from_numpy(rows)
    if isinstance(tree, Tensor):
        return tree.index_select(0, index)
    return map(lambda leaf: leaf.index_select(0, index), tree)


def call(module: nn.Module | Callable[..., Any], inputs: Tree) -> Any:
    """The model's outputs: a dict holds its arguments by name, a tuple or list by position.

    >>> call(lambda x, scale: x * scale, {"x": 2, "scale": 3}), call(lambda x, y: x + y, (2, 3)), call(abs, -1)
    (6, 5, 1)
    """
    if isinstance(inputs, Tensor | PackedSequence):  # the latter is a tuple, and one argument
        return module(inputs)
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def pair(batch: Any) -> tuple[Tree, Tree]:
    """What a ``collate`` gave, once it is known to be (inputs, targets)."""
    require(
        isinstance(batch, tuple | list) and len(batch) == 2,
        f"collate must return a pair (inputs, targets), got {type(batch).__name__}.",
    )
    return plain(batch[0]), plain(batch[1])


def plain(tree: Any) -> Tree:
    """What a ``collate`` gave, with dicts for other mappings (as tokenizers make them) and tensors for NumPy arrays."""
    if isinstance(tree, Tensor):
        return tree
    if isinstance(tree, np.ndarray | np.generic):
        return torch.as_tensor(tree)
    if isinstance(tree, Mapping):
        return {name: plain(each) for name, each in tree.items()}
    if isinstance(tree, tuple | list):
        return rebuilt(tree, [plain(each) for each in tree])
    return tree


def concatenated(parts: list[Tree]) -> Tree:
    """Trees of one structure as one, row after row.

    >>> concatenated([{"x": torch.tensor([1])}, {"x": torch.tensor([2, 3])}])
    {'x': tensor([1, 2, 3])}
    """
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(parts)
    flat = [_pytree.tree_flatten(part) for part in parts]
    require(all(spec == flat[0][1] for _, spec in flat), "trees of several structures cannot be joined.")
    return _pytree.tree_unflatten(
        [torch.cat(column) for column in zip(*(each for each, _ in flat), strict=True)], flat[0][1]
    )


def rebuilt(like: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    """The items as the same kind of sequence; a named tuple takes them one by one.

    >>> rebuilt((1, 2), [3, 4])
    (3, 4)
    """
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
