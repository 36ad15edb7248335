"""Members come and go between two rounds, and lam stays sum_i omega_i*lam_i over those who are there.

A node with a client number that is still free *joins*. Who is *expelled* by the server's operator, or says farewell itself
(``fedvra-leave=true`` in its node-config), leaves for good. Whose *samples* become more or fewer weighs accordingly, where
weights go by samples. The equation for all three is ``rule.reweighed_dual``.

Leaving and growing need the client's own lam_i, as it was counted last: from the shadow; else from the client itself, whose
books are settled by the same message, so that no upload is pending; else, for one who leaves, it is what lam lacks when all the
others report theirs. Until it can be had the client sits out, or keeps its old weight.
"""

from __future__ import annotations

import hmac
import json
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedvra.core import rule
from fedvra.core.errors import UsageError, require
from fedvra.core.files import replace_durably
from fedvra.core.members import NEVER, Members
from fedvra.engines.experiment import Plan, raw_weights
from fedvra.flower.private import private_files
from fedvra.flower.repair import reported
from fedvra.flower.server_books import Books
from fedvra.state.durable import seal

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy

EXPEL = "expel-{:06d}.json"
"""In the server's folder: a client is to leave before the next round. The books have one writer, the server."""


def settle_members(strategy: Strategy, grid: Grid) -> dict[str, Any]:
    """Who leaves, joins or has other samples than before, written down when this returns; what a record says of it."""
    books, said = strategy.books, strategy.said
    strategy.leaving |= requests(strategy.folder, books, strategy.key)
    strategy.leaving &= set(books.members.numbers.tolist())
    forget_requests(strategy)  # a server that was killed did not come to it
    note = _leave(strategy, grid)
    grown = {i: n for i, n in said.items() if books.members.present[i] and n != books.samples[i]}
    for client, samples in sorted(grown.items()):
        was = int(books.samples[client])
        found = _own_duals(strategy, grid, {client}) if _weight_changes(strategy, client, samples) else {client: None}
        if client in found:
            _change(strategy, client, books.members, samples, found[client])
            note.setdefault("samples", {})[client] = [was, samples]
            log(INFO, "client %s has %s samples, it had %s", client, samples, was)
    for client in sorted(strategy.roster.nodes):
        if books.members.joined[client] == NEVER:
            _change(strategy, client, books.members.join(client, books.round), said[client], None)
            note.setdefault("joined", []).append(client)
            log(INFO, "client %s joins with %s samples", client, said[client])
    if note:
        strategy.save()  # before anybody works under the new weights
        forget_requests(strategy)
    return note


def _leave(strategy: Strategy, grid: Grid) -> dict[str, Any]:
    books, left = strategy.books, []
    found = _own_duals(strategy, grid, strategy.leaving)
    found |= _lacking(strategy, grid, strategy.leaving - found.keys())
    for client, lam_i in sorted(found.items()):
        _change(strategy, client, books.members.leave(client, books.round), int(books.samples[client]), lam_i)
        for rows in (books.tickets, books.keys, books.restores, books.shadow, strategy.said):
            rows.pop(client, None)
        strategy.lost.discard(client)
        strategy.roster.forget(client)
        left.append(client)
        log(INFO, "client %s has left for good", client)
    strategy.leaving -= set(left)
    if strategy.leaving:
        log(
            WARNING, "clients %s are to leave: their duals are needed, or those of all others", sorted(strategy.leaving)
        )
    return {"left": left} if left else {}


def _change(strategy: Strategy, client: int, members: Members, samples: int, lam_i: Tensor | None) -> None:
    """Enter one change into the books; they are unchanged where the experiment does not go with it."""
    books, e = strategy.books, strategy.experiment
    numbers = books.samples.copy()
    numbers[client] = samples
    before, after = raw_weights(e.weights, books.samples, books.members), raw_weights(e.weights, numbers, members)
    Plan(e, numbers, members)  # a sampler of more clients than are left, and the like
    books.lam = rule.reweighed_dual(books.lam, lam_i, float(before.sum()), float(after[client] - before[client]))
    books.samples, books.members = numbers, members


def _weight_changes(strategy: Strategy, client: int, samples: int) -> bool:
    books, weights = strategy.books, strategy.experiment.weights
    numbers = books.samples.copy()
    numbers[client] = samples
    return bool(raw_weights(weights, numbers)[client] != raw_weights(weights, books.samples)[client])


def _own_duals(strategy: Strategy, grid: Grid, clients: set[int]) -> dict[int, Tensor | None]:
    """lam_i of each of these clients as it was counted last, where it can be had; None stands for zero."""
    books, found = strategy.books, dict[int, Tensor | None]()
    for client in sorted(clients):
        if not books.tickets.get(client):
            found[client] = None  # never counted
        elif strategy.shadow:
            found[client] = books.shadow.get(client)
        elif client in books.restores:
            found[client] = books.restores[client]
        else:
            said = reported(strategy, grid, only={client})
            if not said.missing:
                weight = float(strategy.plan.omega[client])
                found[client] = said.total / weight if weight else None
    return found


def _lacking(strategy: Strategy, grid: Grid, clients: set[int]) -> dict[int, Tensor | None]:
    """What lam lacks of these clients when all others report, shared equally among them; nothing where one does not."""
    if not clients:
        return {}
    others = reported(strategy, grid, leave_out=clients)
    weight = float(sum(strategy.plan.omega[client] for client in clients))
    if others.missing:
        return {}
    share = (strategy.books.lam.double() - others.total) / weight if weight else torch.zeros_like(others.total)
    return dict.fromkeys(clients, share)


# -- requests of the operator ------------------------------------------------------------------------------------------------


def expel(folder: Path, client: int, key: bytes | None = None) -> bool:
    """Ask the server of a folder, running or started later, to let a client go before its next round.

    Returns whether sums are masked, so that the others have to know.
    """
    books = Books.read(folder, key)
    if books is None:
        raise UsageError(f"there are no books in {folder}.")
    numbers = books.members.numbers.tolist()
    require(client in numbers, f"there is no client {client} in {folder}: there are {', '.join(map(str, numbers))}.")
    books.members.leave(client, books.round)  # raises where it is the last one
    request = {"experiment": books.experiment, "expel": client}
    with private_files(folder):
        replace_durably(folder / EXPEL.format(client), json.dumps({**request, "sha256": seal(request, key)}).encode())
    return bool(books.identity.get("secure"))


def forget_requests(strategy: Strategy) -> None:
    """Remove the requests for clients who have left, which the books know by now."""
    for client in np.flatnonzero(strategy.books.members.left != NEVER).tolist():
        (strategy.folder / EXPEL.format(client)).unlink(missing_ok=True)


def requests(folder: Path, books: Books, key: bytes | None) -> set[int]:
    """Who is to be expelled; a request that does not belong to these books, or not under their key, is left alone."""
    found = set()
    for path in sorted(folder.glob("expel-*.json")):
        try:
            request = json.loads(path.read_bytes())
            mac, client = str(request.pop("sha256")), int(request["expel"])
            genuine = hmac.compare_digest(mac, seal(request, key)) and request["experiment"] == books.experiment
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            genuine = False
        if genuine:
            found.add(client)
        else:
            log(WARNING, "%s is no request for this experiment, and is ignored", path)
    return found
