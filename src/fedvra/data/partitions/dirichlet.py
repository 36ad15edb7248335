"""Label skew: a Dirichlet class prior per client with equal sizes, the split of the paper's experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Floats, Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data.partitions.base import (
    PARTITIONS,
    UNASSIGNED,
    Partition,
    class_codes,
    client_count,
    log_gamma_variates,
    rank_within,
    require_alpha,
)


@dataclass(frozen=True)
class Dirichlet(Partition):
    r"""Client i has a class prior :math:`\pi_i \sim \mathrm{Dir}(\alpha, \dots, \alpha)` and holds floor(n/N) samples.

    Samples are assigned one by one without replacement: a client that still has room is drawn uniformly, then a class from
    its prior restricted to the classes that are not exhausted, then the next sample of that class. Small alpha: nearly one
    class per client; large alpha: IID.

    The priors are kept as logarithms, so the restricted prior exists even where all of its mass is below the smallest
    float: no client is ever stuck, and the number of passes is bounded by the number of classes.

    >>> import numpy as np
    >>> labels = np.arange(1000) % 10
    >>> owners = Dirichlet(0.2).assign(labels, clients=20, seed=0)
    >>> set(np.bincount(owners).tolist())
    {50}
    """

    alpha: float

    def __post_init__(self) -> None:
        require_alpha(self.alpha, "Dirichlet")

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        samples = len(targets)
        total = client_count(clients, samples)
        codes, classes = class_codes(targets, "Dirichlet")
        rng = stream(seed, Purpose.PARTITION)
        log_priors = log_gamma_variates(self.alpha, (total, classes), rng)
        turns = random_turns(total, samples // total, rng)
        stock = np.bincount(codes, minlength=classes)
        drawn = draw_classes(turns, log_priors, stock, rng.random(len(turns)))
        # The j-th draw of a class takes the j-th sample of that class in a random order.
        shuffled = rng.permutation(samples)
        by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
        first = np.cumsum(stock) - stock
        owners = np.full(samples, UNASSIGNED, dtype=np.int64)
        owners[by_class[first[drawn] + rank_within(drawn)]] = turns
        return owners


PARTITIONS.add("dirichlet", Dirichlet)


def random_turns(clients: int, quota: int, rng: np.random.Generator) -> Ints:
    """Whose turn it is at each step, a client with room left drawn uniformly each time, until all hold ``quota``.

    Drawing among all clients that had room at the start of a block and skipping those that have filled up since is the
    same as drawing among those that still have room, and needs no loop over samples.
    """
    room = np.full(clients, quota, dtype=np.int64)
    blocks: list[Ints] = []
    while (left := int(room.sum())) > 0:
        not_full = np.flatnonzero(room)
        block = not_full[rng.integers(len(not_full), size=left)]
        block = block[rank_within(block) < room[block]]
        room -= np.bincount(block, minlength=clients)
        blocks.append(block)
    return np.concatenate(blocks)


def draw_classes(turns: Ints, log_priors: Floats, stock: Ints, uniforms: Floats) -> Ints:
    """The class drawn at each turn: from the client's prior restricted to classes with stock left, by inverse CDF.

    Between two exhaustions the restricted priors do not change, so a block of turns is drawn at once and cut just after
    the first turn that exhausts a class; what follows the cut is drawn again under the new restriction from the same
    uniforms. The outcome equals the turn-by-turn loop.
    """
    left = stock.copy()
    drawn = np.empty(len(turns), dtype=np.int64)
    done, length = 0, 256
    longest = max(256, 2**20 // log_priors.shape[1])  # bounds the memory of one block, whatever the number of classes
    while done < len(turns):
        block = slice(done, done + length)
        picks = _inverse_cdf(log_priors[turns[block]], left > 0, uniforms[block])
        exhausting = np.flatnonzero(rank_within(picks) == left[picks] - 1)
        if len(exhausting):
            picks = picks[: exhausting[0] + 1]
        drawn[done : done + len(picks)] = picks
        left -= np.bincount(picks, minlength=len(left))
        done += len(picks)
        # Following the distance between exhaustions, little is drawn in vain.
        length = min(max(64, 2 * len(picks)), longest)
    return drawn


def _inverse_cdf(log_weights: Floats, allowed: NDArray[np.bool_], uniforms: Floats) -> Ints:
    """Per row: the first allowed column whose cumulative weight exceeds uniform * total."""
    columns = np.flatnonzero(allowed)
    logs = log_weights[:, columns]
    cumulative = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
    total = cumulative[:, -1]
    # Rounding may lift uniform * total to total itself, which no column would exceed.
    level = np.minimum(uniforms * total, np.nextafter(total, 0.0))
    return np.asarray(columns[(cumulative > level[:, None]).argmax(axis=1)], dtype=np.int64)
