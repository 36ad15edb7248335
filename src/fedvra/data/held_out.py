"""Data that nobody trains on: a part of each client's own, clients who never take part, and a part to choose by.

Drawn once from the split's seed, client by client, so that every client is represented as it is in the training data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole

if TYPE_CHECKING:
    from fedvra.data.dataset import FederatedData


def hold_out(
    data: FederatedData, seed: int, validation: float = 0.0, test_share: float = 0.0, unseen: int = 0
) -> FederatedData:
    """The data with these parts set aside.

    Args:
        validation: share of every client's samples that the server validates on.
        test_share: share of every client's samples that the client is tested on.
        unseen: so many clients, drawn at random, never train; they come after the others, with the highest numbers.
    """
    for name, share in (("validation", validation), ("test_share", test_share)):
        require(
            isinstance(share, int | float) and 0 <= share < 1,
            f"{name} must be a share in [0, 1), such as 0.2, got {share!r}.",
        )
    check_whole("unseen", unseen, least=0)
    require(unseen < data.clients, f"of {data.clients} clients {unseen} cannot stay unseen: at least one has to train.")
    if unseen:
        rng = stream(seed, Purpose.HELD_OUT, round=0)
        last = rng.permutation(data.clients)[:unseen]
        order = np.concatenate([np.setdiff1d(np.arange(data.clients), last), np.sort(last)])
        parts = [data.part(int(client)) for client in order]
        data = replace(
            data, offsets=_offsets([len(part) for part in parts]), indices=np.concatenate(parts), unseen=unseen
        )
    if validation:
        data, _, rows = _apart(data, validation, seed, 1, of=data.clients)
        require(
            len(rows) > 0, f"validation={validation} of clients as small as these is no sample: take a larger share."
        )
        data = replace(data, validation=np.sort(rows))
    if test_share:
        data, offsets, rows = _apart(data, test_share, seed, 2, of=data.clients + unseen)
        require(
            len(rows) > 0, f"test_share={test_share} of clients as small as these is no sample: take a larger share."
        )
        data = replace(data, test_offsets=offsets, test_indices=rows)
    return data


def _apart(data: FederatedData, share: float, seed: int, which: int, of: int) -> tuple[FederatedData, Ints, Ints]:
    """The data without a share of each of the first clients' samples, and these by client; everybody keeps one at least."""
    sizes = np.diff(data.offsets)
    taken = np.minimum(np.floor(share * sizes + 0.5).astype(np.int64), sizes - 1)
    taken[of:] = 0
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((stream(seed, Purpose.HELD_OUT, round=which).random(len(owner)), owner))
    rank = np.arange(len(owner)) - data.offsets[owner]
    apart = np.zeros(len(owner), dtype=bool)
    apart[order[rank < taken[owner]]] = True
    kept = replace(data, offsets=_offsets(sizes - taken), indices=data.indices[~apart])
    return kept, _offsets(taken), data.indices[apart]


def _offsets(sizes: Ints | list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
