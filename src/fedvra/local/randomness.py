"""The global generators of torch, Python and NumPy: seeded for each client's work, and given back as they were."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Start torch's, Python's and NumPy's global generators from ``key``."""
    seed_torch(key)
    random.seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002 - the legacy global generator is what models draw from


def seed_torch(key: int) -> None:
    """Start torch's global generators from ``key``.

    Where there is nothing but the processor this spares ``torch.manual_seed``'s preparations for devices that may come: it
    writes down three stack traces, 0.3 ms for each client.
    """
    if _accelerated():
        torch.manual_seed(key)
    else:
        torch.default_generator.manual_seed(key)


@functools.cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the caller's streams where they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def python_draws() -> tuple[Any, ...]:
    """Where Python's and NumPy's global generators are: unequal before and after where somebody drew from them."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), state["state"]["pos"], state["state"]["key"].tobytes(), state["has_gauss"]
