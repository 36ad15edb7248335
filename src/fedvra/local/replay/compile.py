"""Compiling: the recorded calls that matter, each writing its result where it lay the first time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedvra.core.torch_private import memory
from fedvra.local.replay.record import Call, CannotReplayError, aten, layout
from fedvra.local.replay.tape import Plain, Product, Tape

# Values known from shapes alone.
_FILLS = ("ones", "zeros", "full")
_FROM_SHAPE = {"arange", "scalar_tensor", *_FILLS, *(f"{k}_like" for k in _FILLS), *(f"new_{k}" for k in _FILLS)}


class Compiled(NamedTuple):
    """A step as a function, and all the tensors it is bound to."""

    run: Callable[..., Any]
    tensors: list[Tensor]
    loss: Tensor
    """Where the loss comes out."""


class Recording(NamedTuple):
    """One forward and backward pass, as it was seen."""

    calls: list[Call]
    x: Tensor
    """The memory the parameters were read from."""
    gradients: Sequence[Tensor | None]
    """What was found for each parameter."""
    batch: list[Tensor]
    """The memory that inputs and targets are put into."""
    loss: Tensor
    """What it came to."""
    aux: Sequence[Tensor] = ()
    """The memory of the statistics, which the step updates."""
    counters: Sequence[Tensor] = ()
    """Whole numbers that the step counts up and nobody reads."""


def compile_step(
    recording: Recording, out: Tensor, parameters: list[Tensor], refresh: Sequence[tuple[Tensor, Tensor]] = ()
) -> Compiled:
    """The calls that matter, in place, and then the update of ``out``.

    Args:
        out: the memory that is updated, and ``parameters`` the views of it.
        refresh: pairs (copy, master) to copy before anything else, for a network that computes in a lower precision.
    """
    tape, loss, products, others = _body(recording, parameters, refresh)
    run: Callable[..., Any] = tape.step(out, products, others)
    if any(
        c.name == "mkldnn_rnn_layer" for c in recording.calls
    ):  # keeps what its backward pass needs only in this mode
        run = torch.enable_grad()(run)
    return Compiled(run, tape.tensors, loss)


def compile_gradients(recording: Recording, parameters: list[Tensor]) -> Compiled:
    """The calls that matter, in place; the function returns each parameter's gradient: None, a tensor, or two factors."""
    tape, loss, products, others = _body(recording, parameters)
    found: dict[int, Any] = {id(w): (a, b) for w, a, b in products} | {id(w): g for w, g in others}
    return Compiled(tape.giving([found[id(w)] for w in parameters]), tape.tensors, loss)


def _body(
    recording: Recording, parameters: list[Tensor], refresh: Sequence[tuple[Tensor, Tensor]] = ()
) -> tuple[Tape, Tensor, list[Product], list[Plain]]:
    """A tape that computes all that the gradients need, where the loss comes out, and the gradients as products and others."""
    calls, x, gradients, batch, loss, statistics, counters = recording
    given, aux = {memory(x), *map(memory, batch)}, set(map(memory, statistics))
    work = [c for c in calls if not c.is_view]
    products, others, absorbed = _updates(work, parameters, gradients, memory(x))
    wanted = {memory(t) for _, a, b in products for t in (a, b)} | {memory(g) for _, g in others if g is not None}
    wanted |= {memory(loss), *aux}
    tape = Tape([c for c in calls if c.is_view])
    for low, master in refresh:
        tape.copy(low, master)
    live = _live(work, absorbed, set(wanted))
    if any(c.reads & set(map(memory, counters)) for c in live):
        raise CannotReplayError("the step depends on how many steps there were before")
    tape.replay(_varying(live, given | aux), wanted)
    if memory(loss) in tape.moving:  # its kernel insists on new memory each time: keep a copy where it can be found
        kept = torch.empty_like(loss, requires_grad=False)
        tape.copy(kept, loss)
        loss = kept
    return tape, loss.detach(), products, others


def _updates(
    work: list[Call], parameters: list[Tensor], gradients: Sequence[Tensor | None], x: int
) -> tuple[list[Product], list[Plain], set[int]]:
    """Gradients that are products A @ B read by nobody else, as (parameter, A, B); the others; the calls thus absorbed."""
    makers = {m: c for c in work for m in c.writes}
    uses = Counter(m for c in work for m in c.reads) + Counter(memory(g) for g in gradients if g is not None)
    products: list[Product] = []
    others: list[Plain] = []
    absorbed: set[int] = set()
    for parameter, g in zip(parameters, gradients, strict=True):
        if g is None:
            others.append((parameter, None))
            continue
        if memory(g) == x:
            raise CannotReplayError("a gradient is a view of the parameters")
        maker = makers.get(memory(g))
        if (
            maker
            and maker.func in (aten.mm.default, aten.bmm.default)
            and uses[memory(g)] == 1
            and g.dtype == parameter.dtype
        ):
            (product,), (a, b) = maker.outputs, maker.args
            # An operand inside x itself (factorised weights) would already be updated when it is read: not fused.
            if x not in maker.reads and layout(g) in (layout(product), layout(product.mT)):
                flip = layout(g) != layout(product)
                products.append((parameter, b.mT, a.mT) if flip else (parameter, a, b))
                absorbed.add(id(maker))
                continue
        others.append((parameter, g))
    return products, others, absorbed


def _live(work: list[Call], absorbed: set[int], wanted: set[int]) -> list[Call]:
    """The calls that write something read later, and all that draw random numbers, so that every step draws as many."""
    live = []
    for c in reversed(work):
        if id(c) not in absorbed and (c.writes & wanted or c.draws):
            live.append(c)
            wanted |= c.reads
    return live[::-1]


def _varying(live: list[Call], given: set[int]) -> list[Call]:
    """Without the calls whose results are the same at every step: their memory keeps the value."""
    changed_later = {m for c in live if c.in_place for m in c.writes}
    varying, kept = set(given), []
    for c in live:
        fixed = c.name in _FROM_SHAPE or not (c.reads & varying or c.draws)
        if not fixed or c.writes & changed_later:
            varying |= c.writes
            kept.append(c)
    return kept
