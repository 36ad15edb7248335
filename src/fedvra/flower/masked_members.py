"""Members who come and go where sums are masked: everybody's part of lam stays what it is, omega_i*lam_i, in whole grains.

Who joins has none. Whose weight changes, by samples of its own or because of others, reads another lam_i off the same part,
which its next moves put right; lam and the sum need no change. To weigh lam_i itself anew would take another sum of duals, and
with those before and after the server could tell the dual of a client that has grown.

When somebody leaves, lam is found anew: the masked sum over those who stay. All of them have to answer; until they do, nothing
changes and those who are to leave sit out. The server has the sums before and after: a departure tells it the part of the one
who left, or the sum of several who left together.
"""

from __future__ import annotations

from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid
from flwr.supercore import log

from fedvra.core.members import NEVER
from fedvra.core.whole import to_real
from fedvra.engines.experiment import Plan
from fedvra.flower.masked_audit import NoSumError, holders, sum_of_duals
from fedvra.flower.members import forget_requests, requests

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy


def settle_masked_members(strategy: Strategy, grid: Grid) -> dict[str, Any]:
    """Who leaves, joins or has other samples than before, written down when this returns; what a record says of it."""
    books, said, members = strategy.books, strategy.said, strategy.books.members
    strategy.leaving |= requests(strategy.folder, books, strategy.key)
    strategy.leaving &= set(members.numbers.tolist())
    forget_requests(strategy)
    left, numbers = sorted(strategy.leaving), books.samples.copy()
    joined = [client for client in sorted(strategy.roster.nodes) if members.joined[client] == NEVER]
    grown = {i: [int(numbers[i]), n] for i, n in said.items() if members.present[i] and n != numbers[i]}
    if not (left or joined or grown):
        return {}
    for client in left:
        members = members.leave(client, books.round)
    for client in joined:
        members = members.join(client, books.round)
    for client in (*joined, *grown):
        numbers[client] = said[client]
    Plan(strategy.experiment, numbers, members)  # raises where the experiment does not go with it
    if books.whole is not None and left:
        try:
            books.whole = sum_of_duals(strategy, grid, np.setdiff1d(holders(books), left))
        except NoSumError as missing:
            log(WARNING, "members change when all who stay have answered: %s", missing.why)
            return {}
        books.lam = to_real(books.whole, books.lam.dtype)
    books.members, books.samples = members, numbers
    for client in left:
        for rows in (books.tickets, books.keys, said):
            rows.pop(client, None)
        strategy.lost.discard(client)
        strategy.roster.forget(client)
    strategy.leaving.clear()
    strategy.save()  # before anybody works under the new weights
    forget_requests(strategy)
    found = {"left": left, "joined": joined, "samples": grown}
    log(INFO, "members: %s", found)
    return {name: each for name, each in found.items() if each}
