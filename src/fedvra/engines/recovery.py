"""Rows that died with a worker of a cluster are brought back: the last checkpoint, and the rounds since once more.

What a round draws follows from the seed and its number, so that the rounds come out as they did, to the bit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fedvra.core.threads import one_thread
from fedvra.engines.pool import WorkerDiedError

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation

log = logging.getLogger("fedvra")


def bring_back(federation: Federation) -> None:
    """Have the rows as they were after the last round, if any were lost."""
    federation.clients.rollback()
    if not federation.engine.rows_lost():
        return
    reached, time = federation.state.round, federation.state.time
    start = _return_to_checkpoint(federation, reached)
    log.warning("a worker died with rows of clients: rounds %d to %d are run again", start + 1, reached)
    with one_thread():
        while federation.state.round < reached:
            federation.replay()
        federation.next_cohort()  # which broadcasts
    federation.state.time = time  # the round that is to be run again has been counted


def _return_to_checkpoint(federation: Federation, reached: int) -> int:
    """The round that was returned to; workers may die of it, too."""
    from fedvra.engines import checkpoint  # which knows of federations

    while True:
        for store in federation.clients.kinds().values():
            store.clear()
        federation.begin()
        try:
            folder = federation.checkpoints
            return 0 if folder is None else checkpoint.restore(federation, folder, up_to=reached)
        except WorkerDiedError:
            continue
