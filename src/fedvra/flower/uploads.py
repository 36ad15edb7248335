"""Uploads are checked before they count: one client that is broken, or means harm, must not spoil the model of all.

What is checked: that the vector is one of NumPy's plain format, its length, its dtype, that every number is finite, that its
Euclidean norm is not absurd beside the model's, and, where a bound is set, that it is below it. An upload that fails is refused
by name; its client's dual is not committed, and the round is run without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from flwr.app import Array
from torch import Tensor

from fedvra.core.compressor import BadCodeError, Compressor
from fedvra.core.errors import FedvraError, UsageError
from fedvra.flower.client_ledger import check_ticket
from fedvra.flower.protocol import Answer, BadMessageError
from fedvra.flower.spool import Spool, Stored
from fedvra.flower.wire import read_vector

ABSURD = 1e9
"""No honest vector is so many times longer than the one it belongs to (plus 1), however badly a run diverges in one round."""
MAX_LOSS = 1e30
FAR = 1e4
"""No honest loop does so many times more, or less, than it was asked to."""


class RefusedUploadError(FedvraError):
    """An upload that will not be counted, and why."""


@dataclass(frozen=True)
class Upload:
    """What a client sends in step 15, fit to be counted."""

    ticket: str
    loss: float
    """NaN where it is not reported."""
    move: Stored
    """D_i = x_i - x0 [P]."""
    aux: Stored | None
    """Float buffers [K], where the model has any."""
    steps: int = 0
    carried: float = 0.0
    """What a loop of the client's own did; see ``Answer``."""
    epsilon: float = 0.0
    """What the client says that its privacy has come to."""


def check_work(upload: Upload, steps: int, carried: float) -> None:
    """Refuse work that is not of the order of what was asked for: coefficients divide by it."""
    for name, said, asked in (("steps", upload.steps, steps), ("the sum of its stepsizes", upload.carried, carried)):
        if name == "steps" and said < 1:
            raise RefusedUploadError(f"its loop took {said} steps")
        if said and not asked / FAR <= said <= asked * FAR:
            raise RefusedUploadError(f"its loop says of {name} {said:.4g}, where {asked:.4g} were asked for")


def checked_upload(
    answer: Answer,
    client: int,
    x0: Tensor,
    aux: Tensor | None,
    max_norm: float | None,
    spool: Spool,
    compress: Compressor | None = None,
) -> Upload:
    """The upload in an answer to a model x0 with buffers ``aux``, put away; raises RefusedUploadError with the reason."""
    if answer.client != client:
        raise RefusedUploadError(f"it says that it comes from client {answer.client}")
    try:
        check_ticket(answer.ticket)
    except UsageError as error:
        raise RefusedUploadError(str(error)) from error
    if not answer.ticket:
        raise RefusedUploadError("it carries no ticket")
    if not math.isfinite(answer.loss) or abs(answer.loss) > MAX_LOSS:
        raise RefusedUploadError(f"its training loss is {answer.loss}")
    if not answer.epsilon >= 0:
        raise RefusedUploadError(f"its epsilon is {answer.epsilon}")
    move = checked_vector(answer.arrays.get("move"), x0, "the move", max_norm, compress)
    buffers = None if aux is None else checked_vector(answer.arrays.get("aux"), aux, "the buffers")
    return Upload(
        ticket=answer.ticket,
        loss=math.nan if answer.silent else answer.loss,
        move=spool.add(move),
        aux=None if buffers is None else spool.add(buffers),
        steps=answer.steps,
        carried=answer.carried,
        epsilon=answer.epsilon,
    )


def checked_vector(
    array: Array | None, like: Tensor, name: str, max_norm: float | None = None, compress: Compressor | None = None
) -> Tensor:
    """A vector that came from elsewhere, once it is known to be one that can be added to ``like``."""
    if array is None:
        raise RefusedUploadError(f"{name}: missing")
    most = like.numel() * 8 + 256  # numbers of another kind, and any header, before anything is copied
    if len(array.data) > most:
        raise RefusedUploadError(f"{name} takes {len(array.data)} bytes, expected {most} at most")
    try:
        found = read_vector(array, compress, like)
    except (BadMessageError, BadCodeError) as error:
        raise RefusedUploadError(f"{name}: {error}") from error
    if found.dtype != like.dtype:
        raise RefusedUploadError(f"{name} is {found.dtype}, expected {like.dtype}")
    if found.shape != like.shape:
        raise RefusedUploadError(f"{name} has shape {list(found.shape)}, expected {list(like.shape)}")
    bad = int((~torch.isfinite(found)).sum())
    if bad:
        raise RefusedUploadError(f"{name} holds NaN or infinity in {bad} of {found.numel()} places")
    norm, beside = (float(torch.linalg.vector_norm(vector.double())) for vector in (found, like))
    if not norm <= ABSURD * (1 + beside):
        raise RefusedUploadError(f"{name} has norm {norm:.4g}, absurd beside {beside:.4g}")
    if max_norm is not None and norm > max_norm:
        raise RefusedUploadError(f"{name} has norm {norm:.4g}, more than the bound {max_norm:.4g}")
    return found
