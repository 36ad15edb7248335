"""What a data set is before it is in memory: where its files come from and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvra.core.registry import Registry
from fedvra.data.sources.files import File
from fedvra.data.sources.routes import Route


class Arrays(NamedTuple):
    """Images uint8 [n, C, H, W] and labels, to train and to test on."""

    inputs: NDArray[np.uint8]
    targets: NDArray[Any]
    test_inputs: NDArray[np.uint8]
    test_targets: NDArray[Any]


@dataclass(frozen=True)
class Source:
    """A data set that can be had by name."""

    name: str
    description: str
    read: Callable[[Path], Arrays]
    """Read the arrays from the folder that holds ``files``."""
    classes: tuple[str, ...]
    files: tuple[File, ...] = ()
    """What it consists of, as published and uncompressed; none for data that come inside a dependency."""
    layouts: tuple[str, ...] = ()
    """Where other programs keep these files, relative to a data folder."""
    routes: tuple[Route, ...] = ()
    """Where else to look, in this order."""
    transform: dict[str, Any] = field(default_factory=dict)
    """The fields of :class:`fedvra.data.transform.Transform` (as a dict, so that naming a data set needs no torch)."""


SOURCES: Registry[Source] = Registry("data set", "fedvra.data.sources", group="fedvra.data.sources")
