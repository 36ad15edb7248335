"""What server and clients say to each other: one kind of message each way, as records of Flower.

Every message goes to the ClientApp's ``train`` function and names its errand, so that one decorated function is all a client
needs. Numbers and words travel in a ``ConfigRecord``, vectors as NumPy arrays in an ``ArrayRecord``; nothing is pickled, and
nothing that arrives is unpickled or parsed: an array's header is compared with the one it must have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedvra.core.errors import FedvraError

ARRAYS, CONFIG = "fedvra.arrays", "fedvra.config"
MAX_TEXT = 2000
MAX_SHOWN = 300
"""Characters of somebody else's words that are logged or kept in a record."""
VECTORS = ("arrays", "shared")
"""The fields of a message that are no numbers or words."""
KINDS = ("<f4", "<f8", "<f2", "|u1")
"""The numbers a vector may hold, as NumPy writes them."""


class Errand(StrEnum):
    """What the server wants of a client."""

    HELLO = "hello"
    """Say who you are: client number, samples, tickets."""
    TRAIN = "train"
    """Settle the books, take your local steps, upload the move."""
    REPORT = "report"
    """Settle the books and show the committed dual: for audits and repairs."""
    LOSS = "loss"
    """f_i at x0, for samplers that choose by it."""
    EVALUATE = "evaluate"
    """Test x0 on your own test data."""


class Status(StrEnum):
    DONE = "done"
    LOST = "lost"
    """The ticket is unknown here: the client's state has to be restored first."""
    STALE = "stale"
    """The message is older than one already answered."""
    SPENT = "spent"
    """The client's privacy budget does not allow for it."""
    REFUSED = "refused"
    """It was meant for somebody else, or does not fit."""


class BadMessageError(FedvraError):
    """A message that does not have the expected records."""


@dataclass(frozen=True)
class Order:
    """From the server to one client."""

    errand: str
    experiment: str
    total: int
    """N."""
    client: int = -1
    incarnation: int = 0
    number: int = 0
    counted: str = ""
    """The ticket counted last for this client; "" for none."""
    round: int = 0
    seed: int = 0
    batch_size: int = 0
    """0: the client's whole data in every step."""
    drop_last: int = 0
    """1: leave out the last, smaller batch of an epoch."""
    frozen: str = ""
    """The hash of what is frozen in the model; "" where nothing is."""
    steps: int = 0
    eta: float = 0.0
    gamma: float = 0.0
    alpha: float = 0.0
    sigma: float = 0.0
    local: str = "sgd"
    """The optimiser that takes the steps, as the command line writes it; "torch": the one that the client was given; "loop": a
    training loop of its own."""
    rate: float = 0.0
    """alpha*T, where a client with a loop of its own is to work out alpha from the T that it comes to; 0: it is as given."""
    compress: str = ""
    """What is done to the move, as the command line writes it; "": nothing."""
    residual: int = 0
    """1: what that leaves out is kept by the client and added to its next move, for there is no dual to take it up."""
    compress_down: str = ""
    """What was done to x0 and lam, which then are bytes; "": nothing."""
    privacy: str = ""
    """What is to be done to the gradients of records, as the command line writes it; "": what the client itself wants."""
    bits: int = 0
    """Of each number of a masked sum; 0: nothing is masked."""
    grains: int = 0
    """What a unit of the first sum is worth in duals; 0 where there is none."""
    unit: float = 0.0
    second_unit: float = 0.0
    """What 1 stands for in the first sum and, where there is one, in the second."""
    reach: float = 0.0
    """How far a move is expected to go in any coordinate: what it did is said in relation to this."""
    metrics: str = ""
    """Which figures are wanted besides accuracy and loss, by name, separated by commas."""
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    """x0, lam (where sigma is not 0), aux, lam_i as "restore" for a client that lost its own, and the
    "table" of those who are in a masked sum with the "outcomes" of the rounds so far, 1 for each that counted."""
    shared: Mapping[str, Array] = field(default_factory=dict)
    """Those that go to everybody, as they are sent: one copy for all messages of a round. A client finds them in ``arrays``."""

    @property
    def is_work(self) -> bool:
        """Whether local steps can be taken by it. Fewer than none would be given back by a book that counts them."""
        numbers = (self.eta, self.gamma, self.alpha, self.sigma, self.rate)
        return self.steps >= 1 and self.batch_size >= 0 and all(map(math.isfinite, numbers))


@dataclass(frozen=True)
class Answer:
    """From a client to the server."""

    status: str
    client: int
    reason: str = ""
    samples: int = 0
    leaving: int = 0
    """1: this client wants to leave for good."""
    committed: str = ""
    pending: str = ""
    ticket: str = ""
    loss: float = 0.0
    silent: int = 0
    """1: the loss is not reported."""
    epsilon: float = 0.0
    """What the client's privacy has come to, where it keeps books of it."""
    steps: int = 0
    """Q_i, as a loop of the client's own came to."""
    carried: float = 0.0
    """T_i, likewise: how far a constant unit gradient would have been carried; 0 where its optimiser has no such number."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """"move" (x_i - x0, or the bytes that it was compressed to), "aux", "lam" in a report, "figures" of a test, "second" and
    "few" of a masked sum: as they came, to be checked before they are read."""


def pack(message: Order | Answer) -> RecordDict:
    """The records of a message."""
    scalars = {f.name: getattr(message, f.name) for f in fields(message) if f.name not in VECTORS}
    plain = {name: str(value) if isinstance(value, str) else value for name, value in scalars.items()}
    arrays = ArrayRecord()
    for name, vector in message.arrays.items():
        arrays[name] = vector if isinstance(vector, Array) else to_array(vector)
    if isinstance(message, Order):
        for name, array in message.shared.items():
            arrays[name] = array  # itself: ArrayRecord(...) would copy it, and Flower hash each copy
    return RecordDict({CONFIG: ConfigRecord(plain), ARRAYS: arrays})


def unpack_order(content: RecordDict) -> Order:
    scalars, arrays = _records(content, Order, {"x0", "lam", "aux", "restore", "table", "outcomes"})
    return Order(**scalars, arrays={name: read_array(array) for name, array in arrays.items()})


def unpack_answer(content: RecordDict) -> Answer:
    """An answer whose numbers and words have the right types; its arrays are still as they came."""
    scalars, arrays = _records(content, Answer, {"move", "aux", "lam", "figures", "second", "few"})
    for name in ("leaving", "silent"):
        if scalars[name] not in (0, 1):
            raise BadMessageError(f"{name} should be 0 or 1, got {scalars[name]}.")
    return Answer(**scalars, arrays=arrays)


def to_array(tensor: Tensor) -> Array:
    return Array(np.ascontiguousarray(tensor.detach().numpy()))


def read_array(array: Array) -> Tensor:
    """The vector in an ``Array`` of NumPy's plain format. Nothing in its header is parsed.

    The header of a vector follows from the kind of its numbers and how many there are, and how many there are follows from
    the length of the data: so it is written down here for each kind and compared. Only the padding may differ, which
    depends on the version of NumPy.
    """
    data = array.data
    start = 10 + int.from_bytes(data[8:10], "little") if data[:8] == b"\x93NUMPY\x01\x00" else 0
    header = data[10:start].rstrip(b" \n") if 0 < start <= 256 else b""
    for kind in KINDS:
        count, rest = divmod(len(data) - start, np.dtype(kind).itemsize)
        if not rest and header == f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count},), }}".encode():
            return torch.from_numpy(np.frombuffer(data, kind, offset=start).copy())
    raise BadMessageError("an array is not a vector of numbers in NumPy's plain format.")


def printable(text: str) -> str:
    """Somebody else's words, fit to be logged: on one line, without control characters, and not too many.

    >>> printable("ready\\n[ROUND 7]\\x1b[2J")
    'ready\\\\n[ROUND 7]\\\\x1b[2J'
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN else f"{shown}..."


def _records(content: RecordDict, kind: type[Any], names: set[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    config, arrays = content.get(CONFIG), content.get(ARRAYS)
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise BadMessageError(
            f"the records {CONFIG!r} and {ARRAYS!r} are missing: the other side does not use fedvra.flower."
        )
    scalars: dict[str, Any] = {}
    for f in fields(kind):
        if f.name in VECTORS:
            continue
        expected = {"str": str, "int": int, "float": float}[str(f.type)]
        value = config.get(f.name)
        if type(value) is not expected:
            raise BadMessageError(f"{f.name} should be {f.type}, got {type(value).__name__}.")
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise BadMessageError(f"{f.name} is {len(value)} characters long.")
        scalars[f.name] = value
    if unknown := arrays.keys() - names:
        raise BadMessageError(f"there is no place for the array {printable(min(unknown))!r}.")
    return scalars, dict(arrays)
