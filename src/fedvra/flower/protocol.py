"""What server and clients say to each other: one kind of message each way, as records of Flower.

Every message goes to the ClientApp's ``train`` function and names its errand, so that one decorated function is all a client
needs. Numbers and words travel in a ``ConfigRecord``, vectors as NumPy arrays in an ``ArrayRecord``; nothing is pickled, and
nothing that arrives is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedvra.errors import FedvraError

ARRAYS, CONFIG = "fedvra.arrays", "fedvra.config"
MAX_TEXT = 2000


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


class Status(StrEnum):
    DONE = "done"
    LOST = "lost"
    """The ticket is unknown here: the client's state has to be restored first."""
    STALE = "stale"
    """The message is older than one already answered."""
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
    steps: int = 0
    eta: float = 0.0
    gamma: float = 0.0
    alpha: float = 0.0
    sigma: float = 0.0
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    """x0, lam (where sigma is not 0), aux, and lam_i as "restore" for a client that lost its own."""


@dataclass(frozen=True)
class Answer:
    """From a client to the server."""

    status: str
    client: int
    reason: str = ""
    samples: int = 0
    committed: str = ""
    pending: str = ""
    ticket: str = ""
    loss: float = 0.0
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """"move" (x_i - x0), "aux", or "lam" in a report: as they came, to be checked before they are read."""


def pack(message: Order | Answer) -> RecordDict:
    """The records of a message."""
    scalars = {f.name: getattr(message, f.name) for f in fields(message) if f.name != "arrays"}
    plain = {name: str(value) if isinstance(value, str) else value for name, value in scalars.items()}
    arrays = {k: v if isinstance(v, Array) else to_array(v) for k, v in message.arrays.items()}
    return RecordDict({CONFIG: ConfigRecord(plain), ARRAYS: ArrayRecord(arrays)})


def unpack_order(content: RecordDict) -> Order:
    scalars, arrays = _records(content, Order)
    return Order(**scalars, arrays={name: read_array(array) for name, array in arrays.items()})


def unpack_answer(content: RecordDict) -> Answer:
    """An answer whose numbers and words have the right types; its arrays are still as they came."""
    scalars, arrays = _records(content, Answer)
    return Answer(**scalars, arrays=arrays)


def to_array(tensor: Tensor) -> Array:
    return Array(np.ascontiguousarray(tensor.detach().numpy()))


def read_array(array: Array) -> Tensor:
    """The tensor in an ``Array``, by way of NumPy's plain format: its header is read, then the numbers; no pickle, no zip."""
    file = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
            version
        ]
        shape, _, dtype = read_header(file)
        if dtype.hasobject or dtype.kind not in "fiu" or len(shape) > 1:
            raise BadMessageError(f"an array of {dtype} with shape {list(shape)} is not a vector of numbers.")
        values = np.frombuffer(array.data, dtype, offset=file.tell()).reshape(shape)
        return torch.from_numpy(values.copy())
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadMessageError(f"an array cannot be read ({error}).") from error


def _records(content: RecordDict, kind: type[Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    config, arrays = content.get(CONFIG), content.get(ARRAYS)
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise BadMessageError(
            f"the records {CONFIG!r} and {ARRAYS!r} are missing: the other side does not use fedvra.flower."
        )
    scalars: dict[str, Any] = {}
    for f in fields(kind):
        if f.name == "arrays":
            continue
        expected = {"str": str, "int": int, "float": float}[str(f.type)]
        value = config.get(f.name)
        if type(value) is not expected:
            raise BadMessageError(f"{f.name} should be {f.type}, got {str(value)[:80]!r}.")
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise BadMessageError(f"{f.name} is {len(value)} characters long.")
        scalars[f.name] = value
    return scalars, dict(arrays)
