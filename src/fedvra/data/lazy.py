"""Data that stay where they are until a batch is asked for: files, Datasets, a function per client.

A data set that is read lazily has a reader, and in the place of its inputs a tensor on torch's device ``meta``, which
has a shape and a dtype and no content. What a reader gives is bitwise what the same data would have given from memory.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.memory import available_memory
from fedvra.core.objects import Value, equal
from fedvra.data import trees
from fedvra.data.file_array import FileArray
from fedvra.data.reading import as_pair, as_samples, as_targets, is_map_style, rows_of, stacked, tree_of
from fedvra.data.trees import Tree

log = logging.getLogger("fedvra")

CLIENTS_KEPT = 256 << 20
"""Bytes of whole clients that each process keeps of those it read last."""


class Reader(Value, ABC):
    """Samples that are read when they are asked for. ``read`` may be called from any thread."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, rows: Ints) -> tuple[Tree, Tree]:
        """(inputs, targets) of these samples."""

    def take(self, rows: Ints | slice) -> tuple[Tree, Tree]:
        """The same, once it is known that they are numbers; nobody has looked at them before."""
        numbers = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        found = self.read(numbers)
        for values in trees.leaves(found):
            if isinstance(values, Tensor) and values.is_floating_point() and len(values) == len(numbers):
                bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
                require(
                    not bool(bad.any()),
                    f"sample {int(numbers[int(bad.int().argmax())])} of the data holds NaN or infinity; remove or fill it.",
                )
        return found

    def stand_in(self) -> tuple[Tree, Tree]:
        """Inputs and targets without content; reads the first sample."""
        inputs, targets = self.take(np.zeros(1, dtype=np.int64))

        def empty(leaf: Tensor) -> Tensor:
            return torch.empty((len(self), *leaf.shape[1:]), dtype=leaf.dtype, device="meta")

        return trees.map(empty, inputs), trees.map(empty, targets)


@dataclass(frozen=True)
class FileReader(Reader):
    """Trees of arrays of which some, or all, are in files."""

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        first = trees.leaves(self.inputs)[0]
        return int(first.shape[0])

    def read(self, rows: Ints) -> tuple[Tree, Tree]:
        return _rows(self.inputs, rows), _rows(self.targets, rows)


def _rows(tree: Any, rows: Ints) -> Tree:
    def of(leaf: Any) -> Tensor:
        return leaf.rows(rows) if isinstance(leaf, FileArray) else leaf.index_select(0, torch.from_numpy(rows))

    return trees.map_leaves(of, tree)


@dataclass(frozen=True)
class SampleReader(Reader):
    """A torch Dataset, asked for its samples one by one."""

    source: Any
    collate: Callable[[list[tuple[Any, Any]]], Any] | None = None
    where: str = "the data"

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: Ints) -> tuple[Tree, Tree]:
        inputs, targets = as_samples(self.source, self.where, rows.tolist())
        if self.collate is None:
            return stacked(inputs, targets, self.where)
        return trees.pair(self.collate(list(zip(inputs, targets, strict=True))))

    def require_repeatable(self) -> None:
        """Refuse samples that are drawn anew at every reading: a run could not be repeated, nor resumed."""
        first, again = (
            [leaf for leaf in trees.leaves(self.read(np.zeros(1, dtype=np.int64))) if isinstance(leaf, Tensor)]
            for _ in range(2)
        )
        require(
            equal(first, again),
            f"{self.where}: sample 0 is not the same when it is read a second time, so a run could not be repeated; take "
            "random transforms out of the Dataset and give fv.split(..., transform=fv.Transform(crop_padding=4, flip=True)).",
        )


@dataclass(frozen=True)
class ClientReader(Reader):
    """A function from a client's number to its data, called when the client is at work; the last few are kept."""

    function: Callable[[int], Any]
    sizes: Any
    kept: int = CLIENTS_KEPT

    _forgets: ClassVar[tuple[str, ...]] = ("_held", "_offsets")
    _read_only: ClassVar[bool] = True

    @cached_property
    def _offsets(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def _held(self) -> _Held:
        return _Held()

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def read(self, rows: Ints) -> tuple[Tree, Tree]:
        owners = np.searchsorted(self._offsets, rows, side="right") - 1
        breaks = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(rows)]
        parts = []
        for start, stop in pairwise(breaks):
            client = int(owners[start])
            parts.append(trees.take(self._client(client), rows[start:stop] - self._offsets[client]))
        joined = parts[0] if len(parts) == 1 else trees.join(parts)
        return joined[0], joined[1]

    def _client(self, client: int) -> tuple[Tree, Tree]:
        with self._held.lock:
            found = self._held.clients.get(client)
            if found is None:
                found = as_pair(self.function(client), f"client {client}")
                counts = {trees.count(found[0]), trees.count(found[1])}
                require(
                    counts == {int(self.sizes[client])},
                    f"client {client} was said to hold {int(self.sizes[client])} samples, and its function gave "
                    f"{' and '.join(str(count) for count in sorted(counts))}.",
                )
                self._held.clients[client] = found
                self._held.nbytes += trees.nbytes(found)
                while self._held.nbytes > self.kept and len(self._held.clients) > 1:
                    self._held.nbytes -= trees.nbytes(self._held.clients.popitem(last=False)[1])
            self._held.clients.move_to_end(client)
            return found


def obtained(source: Any, where: str, collate: Any, lazy: bool | None) -> tuple[Tree, Tree, Reader | None]:
    """Inputs and targets of what people bring, in memory or with the reader that they come from."""
    if collate is None and isinstance(source, tuple | list) and len(source) == 2:
        mapped = _is_anywhere(_is_mapped, source)
        require(
            mapped or not lazy,
            f"{where}: lazy=True, but these arrays are in memory; map them, np.load(..., mmap_mode='r').",
        )
        if mapped and lazy is not False:
            files = FileReader(
                tree_of(source[0], f"{where}, inputs", _file_or_rows),
                as_targets(tree_of(source[1], f"{where}, targets", _file_or_labels)),
            )
            counts = {int(leaf.shape[0]) for leaf in trees.leaves((files.inputs, files.targets))}
            require(
                len(counts) == 1, f"{where}: arrays of {sorted(counts)} rows; every array needs one row per sample."
            )
            inputs, targets = files.stand_in()
            in_memory = all(isinstance(leaf, Tensor) for leaf in trees.leaves(files.targets))
            return inputs, files.targets if in_memory else targets, files
    elif is_map_style(source) and not isinstance(source, torch.utils.data.TensorDataset) and len(source):
        reader = SampleReader(source, collate, where)
        if lazy is None:
            whole = trees.nbytes(reader.read(np.zeros(1, dtype=np.int64))) * len(source)
            lazy = whole > available_memory() // 4
            if lazy:
                log.info(
                    "%s would take %.1f GB: read batch by batch (lazy=False reads all of it now)", where, whole / 1e9
                )
        if lazy:
            reader.require_repeatable()
            return (None, None, reader) if collate is not None else (*reader.stand_in(), reader)
    require(
        not lazy or isinstance(source, torch.utils.data.IterableDataset),
        f"{where}: lazy=True needs a Dataset with a length.",
    )
    return *(as_pair(source, where) if collate is None else as_samples(source, where)), None


def _is_anywhere(property: Callable[[Any], bool], source: Any) -> bool:
    found: list[bool] = []
    tree_of(source, "", lambda leaf, _: found.append(property(leaf)))
    return any(found)


def _is_mapped(value: Any) -> bool:
    """Whether NumPy maps it from a file, as it stands there: copies on write ("c") may differ from the file."""
    return isinstance(value, np.memmap) and value.filename is not None and value.mode != "c"


def _file_or_rows(value: Any, where: str) -> FileArray | Tensor:
    if not _is_mapped(value):
        return rows_of(value, where)
    require(value.ndim >= 1 and value.dtype.kind in "biuf", f"{where}: expected rows of numbers, got {value.dtype}.")
    return FileArray.of(value, where)


def _file_or_labels(value: Any, where: str) -> FileArray | Tensor:
    """Targets; one number per sample is little, and what partitions go by."""
    return _file_or_rows(np.array(value) if _is_mapped(value) and value.ndim == 1 else value, where)


class _Held:
    """The clients that were read last, oldest first."""

    def __init__(self) -> None:
        self.clients: OrderedDict[int, tuple[Tree, Tree]] = OrderedDict()
        self.nbytes = 0
        self.lock = Lock()
