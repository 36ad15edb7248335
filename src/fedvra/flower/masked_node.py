"""A client's side of masked sums: it checks whom it would be hidden among, counts in whole units, and masks what it sends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array
from torch import Tensor

from fedvra.core.step import CountedMoves
from fedvra.core.whole import GRAIN, WIDE, Counting, Ring, Units, to_real, to_whole
from fedvra.flower.client_ledger import Page, Rows, Stamp
from fedvra.flower.mask_keys import MaskKey, RosterError, Use, read_peers
from fedvra.flower.mask_scheme import FINE
from fedvra.flower.mask_table import Table
from fedvra.flower.masking import Masks, common_digest
from fedvra.flower.protocol import Errand, Order, to_array

MASK_KEY, PEERS, LEAST = "fedvra-mask-key", "fedvra-peers", "fedvra-least"
"""Keys of a SuperNode's --node-config: the client's key, the file of keys it has pinned, and the fewest clients in a sum."""
FAR = 2.0**15
"""No more than this is said of how far a move went beside what was expected."""
WHOLE = "whole"
"""The row of a ledger: omega_i*lam_i in grains. It stays as it is when omega_i changes."""


@dataclass(frozen=True)
class Party:
    """One client in one masked sum, all of whose checks have passed."""

    order: Order
    client: int
    table: Table
    key: MaskKey
    pinned: Mapping[int, Any]
    told: bytes

    @classmethod
    def of(cls, config: Mapping[str, Any], order: Order, client: int) -> Party | None:
        """This client in the sum that an order asks for, None where nothing is masked; raises RosterError.

        A node that has a key takes part in masked sums and in nothing else: the server cannot talk it out of them.
        """
        secret = config.get(MASK_KEY)
        if order.errand == Errand.HELLO or (not order.bits and not secret):
            return None
        if not order.bits:
            raise RosterError(f"this node has a {MASK_KEY} and answers in masked sums only: give the Strategy secure=.")
        if not secret or not config.get(PEERS):
            raise RosterError(
                f"the server asks for masked sums: start this node with {MASK_KEY} and {PEERS} in its --node-config."
            )
        key, pinned = MaskKey(Path(str(secret)).expanduser()), read_peers(Path(str(config[PEERS])).expanduser())
        public = key.private.public_key().public_bytes_raw()
        if key.client != client or client not in pinned or pinned[client].public_bytes_raw() != public:
            raise RosterError(f"{secret} is not the key that {config[PEERS]} has for client {client}.")
        table = Table.read(order.arrays.get("table", torch.empty(0)))
        table.check(pinned, least=int(config.get(LEAST, 3)))
        party = cls(order, client, table, key, pinned, common_digest(order))
        party._check_order()
        return party

    def _check_order(self) -> None:
        order, k = self.order, self.table.row(self.client)
        if order.arrays.get("outcomes", torch.empty(0, dtype=torch.uint8)).numel() != order.round:
            raise RosterError("the server does not say of every round so far whether it counted.")
        if "restore" in order.arrays:
            raise RosterError("a dual was sent along to be restored, which nobody can know where sums are masked.")
        if order.errand == Errand.REPORT:
            return
        if order.errand != Errand.TRAIN:
            raise RosterError(f"there is no masked sum for the errand {order.errand!r}.")
        own = (int(self.table.steps[k]), float(self.table.eta[k]), float(self.table.gamma[k]))
        if own != (order.steps, order.eta, order.gamma):
            raise RosterError("this client is to do other work than the table of clients says.")
        if order.compress or order.local == "loop":
            raise RosterError("masked sums go with neither compressed uploads nor training loops of a client's own.")
        units = [order.unit, *([order.second_unit] if self.table.second.any() else [])]
        if not all(0 < each < math.inf for each in (*units, order.reach)):
            raise RosterError("the units of the sum are not numbers above 0.")
        if order.grains < 0 or (order.grains and order.unit != order.grains * GRAIN):
            raise RosterError("the unit of the sum is not that of the duals.")

    # -- before -----------------------------------------------------------------------------------------------------------

    @property
    def _use(self) -> Use:
        order, clients = self.order, self.table.clients.tolist()
        outcomes = order.arrays["outcomes"].numpy().tobytes() if order.round else b""
        told, report = common_digest(order, stamped=False).hex(), order.errand == Errand.REPORT
        return Use(order.experiment, self._stamp, order.round, told, clients, report, outcomes)

    @property
    def _stamp(self) -> Stamp:
        return self.order.incarnation, self.order.number

    def check_books(self, page: Page) -> None:
        """Before the ledger goes by what is said of the last upload: all are told the same, and it will be written down."""
        if self._stamp > page.stamp:  # of one that is older the ledger itself says so
            use, last = self._use, self.key.last(self.order.experiment)
            use.after(last, self.pinned)
            use.agrees(last, page.pending.ticket if page.pending else "", self.order.counted)

    def spend(self) -> None:
        """Write down, durably, that the masks of this order are used."""
        self.key.spend(self._use, self.pinned)

    def counting(self, rows: Rows) -> Counting:
        """How the move is counted."""
        order, table, k = self.order, self.table, self.table.row(self.client)
        omega, most = float(table.omega[k]), self._ring.room(len(table.clients))
        second = Units(float(table.second[k]), order.second_unit, most) if table.second.any() else None
        units = Units(float(table.first[k]), order.unit, most)
        return Counting(omega, units, order.grains, rows.get(WHOLE), second)

    def duals(self, rows: Rows, new: Rows, dtype: torch.dtype) -> WholeRow:
        """This client's dual."""
        return WholeRow(rows, new, float(self.table.omega[self.table.row(self.client)]), dtype)

    # -- after ------------------------------------------------------------------------------------------------------------

    def upload(self, moves: CountedMoves, loss: float, aux: Tensor | None) -> dict[str, Array]:
        """What is sent of a move: nothing in it is readable by itself."""
        omega = moves.counting.omega
        far = min(float(moves.delta.abs().max()) / self.order.reach, FAR) if moves.delta.numel() else 0.0
        few = [torch.tensor([omega * loss, far, moves.clipped], dtype=torch.float64)]
        few += [] if aux is None else [omega * aux.double()]
        arrays = {
            "move": self._masked(self._ring, moves.counted, "move"),
            "few": self._masked(Ring(WIDE), to_whole(torch.cat(few), FINE), "few"),
        }
        if moves.second is not None:
            arrays["second"] = self._masked(self._ring, moves.second, "second")
        return arrays

    def report(self, rows: Rows, width: int) -> dict[str, Array]:
        """Its part of lam for a sum of duals; whatever weights the server names, or two such sums would tell duals apart."""
        held = rows.get(WHOLE, torch.zeros(width, dtype=torch.int64))
        return {"lam": self._masked(Ring(WIDE), held, "lam")}

    @property
    def _ring(self) -> Ring:
        return Ring(self.order.bits)

    def _masked(self, ring: Ring, whole: Tensor, purpose: str) -> Array:
        peers = {peer: self.pinned[peer] for peer in self.table.clients.tolist() if peer != self.client}
        masks = Masks(self.client, self.key.private, peers, self.told)
        return to_array(torch.from_numpy(ring.encode(masks.apply(ring, ring.wrap(whole), purpose)).copy()))


class WholeRow:
    """A client's dual, kept in grains of omega_i*lam_i and read as lam_i."""

    def __init__(self, rows: Rows, new: Rows, omega: float, dtype: torch.dtype) -> None:
        self._rows, self._new, self._omega, self._dtype = rows, new, omega, dtype

    def old(self, k: int) -> Tensor | None:
        held = self._rows.get(WHOLE)
        return None if held is None else to_real(held, self._dtype, GRAIN / self._omega)

    def place(self, k: int) -> Tensor | None:
        return None

    def stage(self, k: int, row: Tensor) -> None:
        self._new[WHOLE] = row
