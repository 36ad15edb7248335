"""What a partition is, and the small tools partitions are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.core.registry import Registry

UNASSIGNED = -1
"""The owner of a sample that no client holds."""


class Partition(Value, ABC):
    """Says which client holds which sample.

    A partition names an *owner per sample*, so a sample cannot be assigned twice whatever a subclass does. All randomness
    comes from the seed: the same (targets, clients, seed) give the same owners on every machine.

    >>> import numpy as np, fedvra as fv
    >>> fv.Shards(1).assign(np.array([0, 1, 0, 1]), clients=2, seed=0).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """

    _read_only: ClassVar[bool] = True

    @abstractmethod
    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        """The owner of every sample: client numbers 0..N-1, or :data:`UNASSIGNED`.

        ``targets`` has one row per sample: its label (or what was given as ``by``), its target where that is an array of
        numbers, and nothing, [n, 0], where it is a tree. ``clients`` may be None where the partition itself knows how many
        there are.
        """


PARTITIONS: Registry[type[Partition]] = Registry("partition", "fedvra.data.partitions", group="fedvra.data.partitions")
"""Partitions the command line can name; the arguments after the colon are the fields of the dataclass."""


def client_count(clients: int | None, samples: int, least: int = 1) -> int:
    """``clients``, once it is known that each can hold at least ``least`` of the samples."""
    if clients is None:
        raise UsageError("say how many clients share the data (clients=...); only ByColumn can tell by itself.")
    require(clients >= 1, f"there must be at least 1 client, got clients={clients}.")
    require(
        clients * least <= samples,
        f"{clients} clients cannot hold {least} or more samples each when there are only {samples}: "
        f"ask for at most {samples // least} clients or bring more data.",
    )
    return clients


def class_codes(targets: NDArray[Any], partition: str) -> tuple[Ints, int]:
    """Labels renumbered 0..K-1 over the classes that occur, and K."""
    require(
        targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer),
        f"{partition} assigns samples by class label, and the targets are not one integer label per sample: give the labels "
        "with fv.split(..., by=labels), or use IID, QuantitySkew or ByColumn.",
    )
    classes, codes = np.unique(targets, return_inverse=True)
    return codes.astype(np.int64), len(classes)


def rank_within(groups: Ints) -> Ints:
    """How many earlier entries have the same value: the position of each entry within its group.

    >>> rank_within(np.array([7, 3, 7, 7, 3]))
    array([0, 0, 1, 2, 1])
    """
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return ranks


def deal_in_order(order: Ints, sizes: Ints, samples: int) -> Ints:
    """Owners when client i takes the next ``sizes[i]`` entries of ``order``; the rest stay unassigned."""
    owners = np.full(samples, UNASSIGNED, dtype=np.int64)
    owners[order[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def log_gamma_variates(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Logarithms of independent Gamma(alpha, 1) variates: normalised over an axis they are a Dirichlet(alpha) draw.

    Uses Gamma(alpha) = Gamma(alpha + 1) * U**(1/alpha). For small alpha the variates themselves underflow to 0 (at
    alpha = 0.001 more often than not), their logarithms do not.
    """
    boosted = rng.standard_gamma(alpha + 1.0, size=shape)
    uniform = 1.0 - rng.random(size=shape)  # in (0, 1]
    return np.asarray(np.log(boosted) + np.log(uniform) / alpha, dtype=np.float64)


def dirichlet(alpha: float, length: int, rng: np.random.Generator) -> Floats:
    """One Dirichlet(alpha, ..., alpha) draw, safe for every alpha."""
    logs = log_gamma_variates(alpha, (length,), rng)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def require_alpha(alpha: float, partition: str) -> None:
    """Beyond these bounds the concentration means one class per client, or IID, to every digit."""
    require(
        1e-8 <= alpha <= 1e8,
        f"{partition}: alpha must be between 1e-8 and 1e8 (small: very skewed, large: even), got {alpha:g}.",
    )


def require_count(value: int, name: str) -> None:
    """A field that counts something: the command line would otherwise let ``shards:2.5`` through."""
    require(isinstance(value, int) and value >= 1, f"{name} must be a whole number of 1 or more, got {value}.")
