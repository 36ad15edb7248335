"""Rows that died with a worker of a cluster are brought back: the last checkpoint, and the rounds since once more.

What a round draws follows from the seed and its number, so that the rounds come out as they did, to the bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedvra.core.threads import one_thread
from fedvra.engines.pool import WorkerDiedError

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation

log = logging.getLogger("fedvra")
T = TypeVar("T")


def insist(federation: Federation, act: Callable[[], T]) -> T:
    """Do something with the clients' rows; where workers die meanwhile, bring back what went with them and do it again."""
    while True:
        try:
            return act()
        except WorkerDiedError:
            bring_back(federation)


def bring_back(federation: Federation) -> None:
    """Have the rows as they were after the last round, if any were lost."""
    federation.clients.rollback()
    if not federation.engine.rows_lost():
        return
    reached, time = federation.state.round, federation.state.time
    start = insist(federation, lambda: _return_to_checkpoint(federation, federation.checkpoints, reached))
    log.warning("a worker died with rows of clients: rounds %d to %d are run again", start + 1, reached)
    with one_thread():
        while federation.state.round < reached:
            federation.replay()
        federation.next_cohort()  # which broadcasts
    federation.state.time = time  # the round that is to be run again has been counted


def _return_to_checkpoint(federation: Federation, folder: Path | None, reached: int) -> int:
    from fedvra.engines import checkpoint  # which knows of federations

    for store in federation.clients.kinds().values():
        store.clear()
    federation.begin()
    return 0 if folder is None else checkpoint.restore(federation, folder, up_to=reached)
