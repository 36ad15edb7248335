"""A tape of calls with their tensors bound: what a replay does between two steps is to call one kernel after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedvra.core.torch_private import (
    arguments,
    foreach_add_,
    foreach_mul_,
    foreach_zero_,
    kernel,
    memory,
    overload_name,
    tree_leaves,
)
from fedvra.local.replay import products as large
from fedvra.local.replay.record import Call, aten, layout, tensors_in

Product = tuple[Tensor, Tensor, Tensor]
"""A parameter and two factors whose product is its gradient: added by the product itself."""
Plain = tuple[Tensor, Tensor | None]
"""A parameter and its gradient (None: it has none, but still decays)."""

# torch's own bindings cost about 1 us less per call than the generic operator, and take numbers where aten has no out= variant.
_NAMES = ("mm", "addmm", "bmm", "baddbmm", "sum", "add", "sub", "mul", "div", "neg", "where", "gather", "clamp_min")
_BINDINGS = {name: getattr(torch, name) for name in _NAMES}
_OVERWRITING: dict[str, tuple[Any, str]] = {
    "relu": (torch.relu_, ""),
    "threshold_backward": (kernel(aten.threshold_backward.grad_input), "grad_input"),
    "add": (torch.add, "out"),
}
"""Elementwise: the result may lie where the first argument was. How this is done, and the argument that says where."""
LARGE = 1 << 18
"""Bytes of a tensor from which on it matters that its memory is used again while it is in a cache."""


class Slot(NamedTuple):
    """Stands for a tensor whose kernel insists on new memory at every step: its place in the tape's frame."""

    place: int


class Tape:
    """Calls in order. Tensors whose memory stays are bound to them; those whose memory moves pass through ``frame``."""

    def __init__(self, views: list[Call]) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.tensors: list[Tensor] = []
        """All that the calls are bound to."""
        self.frame: list[Any] = []
        self.moving: set[int] = set()
        """Memory that is another at every step."""
        self._views = {id(t): (c, i) for c in views for i, t in enumerate(c.outputs)}
        self._slots: dict[int, Slot] = {}
        self._plain: dict[int, Tensor] = {}
        self._made: set[int] = set()
        """Memory that every step writes before anybody reads it."""
        self._last: dict[int, int] = {}
        """For large tensors in the frame, the last call that needs each."""

    # -- what calls are given ---------------------------------------------------------------------------------------------

    def bind(self, value: Any) -> Any:
        """The value as a call is given it: tensors as they are, moving ones as slots."""
        if isinstance(value, Tensor):
            if memory(value) in self.moving:
                return self._slot(value)
            if value.requires_grad:  # a plain alias, so that the tape does not keep the autograd graph
                value = self._plain.setdefault(id(value), value.detach())
            self.tensors.append(value)
            return value
        if isinstance(value, (list, tuple)):
            return [self.bind(v) for v in value]
        return value

    def now(self, bound: Any) -> Any:
        """What a bound value stands for in this step."""
        if isinstance(bound, Slot):
            return self.frame[bound.place]
        return [self.now(v) for v in bound] if type(bound) is list else bound

    def _slot(self, t: Tensor) -> Any:
        """Of a tensor whose memory moves; views of such memory are taken when first needed."""
        if id(t) not in self._slots:
            call, position = self._views[id(t)]
            if call.func in (aten.detach.default, aten.alias.default):
                self._slots[id(t)] = self.bind(call.args[0])
            else:
                outputs: list[Any] = [t if i == position else None for i in range(len(call.outputs))]
                self._append(kernel(call.func), call.args, call.kwargs, outputs, call.several)
        return self._slots[id(t)]

    # -- writing the tape ---------------------------------------------------------------------------------------------------

    def _append(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], new: Sequence[Any] = (), several: bool = False
    ) -> None:
        """One more call; ``new`` are its outputs that are to be found in the frame (None: nobody asks for it)."""
        bound, named = [self.bind(a) for a in args], {name: self.bind(v) for name, v in kwargs.items()}
        slots = _slots_in([bound, named])
        if not new and not slots:
            self.calls.append(partial(func, *bound, **named))
            return
        self._last.update((slot.place, len(self.calls)) for slot in slots if slot.place in self._last)
        places: list[int | None] = []
        for t in new:
            if isinstance(t, Tensor):
                self._slots[id(t)] = Slot(len(self.frame))
                if t.nbytes >= LARGE:
                    self._last[len(self.frame)] = len(self.calls)
                places.append(len(self.frame))
                self.frame.append(None)
            else:
                places.append(None)
        frame, now = self.frame, self.now

        def call() -> None:
            found = func(*map(now, bound), **{name: now(v) for name, v in named.items()})
            for place, t in zip(places, found if several else (found,), strict=False):
                if place is not None:
                    frame[place] = t

        self.calls.append(call)

    def copy(self, target: Tensor, source: Tensor) -> None:
        self._append(Tensor.copy_, (target, source), {})

    def replay(self, calls: list[Call], wanted: set[int]) -> None:
        """Repeat the calls in order; ``wanted`` is the memory that the update reads afterwards."""
        reads = Counter(m for c in calls for m in c.reads) + Counter(wanted)
        for c in calls:
            into = _into(c.func)
            first: Any = c.outputs[0] if c.outputs else None
            if c.in_place:
                self._append(kernel(c.func), c.args, c.kwargs)
                if isinstance(first, Tensor) and memory(first) in self.moving:
                    self._slots.setdefault(id(first), self.bind(c.args[0]))
            elif c.name in _OVERWRITING and self._overwrites(c, reads):
                source, (func, out) = self.bind(c.args[0]), _OVERWRITING[c.name]
                self._append(func, c.args, {**c.kwargs, out: c.args[0]} if out else {})
                self.moving.add(memory(first))
                self._slots[id(first)] = source
            elif c.name == "relu":
                self._append(torch.clamp_min, (c.args[0], 0), {"out": first})
            elif c.name in ("clone", "_to_copy"):
                self.copy(first, c.args[0])
            elif c.name == "mm" and large.is_large(*c.args):
                self._append(large.mm, c.args, {"out": first})
            elif c.name == "addmm" and not c.kwargs and c.args[0].ndim == 1 and large.is_large(*c.args[1:]):
                self._append(large.addmm, c.args, {"out": first})
            elif c.name in _BINDINGS and (into or overload_name(c.func) == "Scalar") and not c.several:
                self._append(_BINDINGS[c.name], c.args, {**c.kwargs, "out": first})
            elif into:
                func, outs = into
                self._append(kernel(func), c.args, {**c.kwargs, **dict(zip(outs, c.outputs, strict=True))})
            else:
                self.moving.update(memory(t) for t in c.outputs if isinstance(t, Tensor))
                self._append(kernel(c.func), c.args, c.kwargs, c.outputs, c.several)
            self._made |= c.writes - c.reads

    def _overwrites(self, c: Call, reads: Counter[int]) -> bool:
        """Whether the result may take the place of the first argument: it is of this step, and nobody else reads it.

        Views of memory that moves are taken anew in every step, so for small results this would not pay.
        """
        source, result = c.args[0], c.outputs[0]
        if reads[memory(source)] > 1 or memory(source) not in self._made:
            return False
        if c.name == "relu" and memory(source) in self.moving:
            return True
        return (
            result.nbytes >= LARGE
            and all(memory(t) != memory(source) for t in tensors_in((c.args[1:], c.kwargs)))
            and (source.dtype, layout(source)) == (result.dtype, layout(result))
        )

    def _with_memory_freed(self, needed: Any) -> tuple[Callable[[], Any], ...]:
        """The calls, with large tensors given up after the last that uses them, but for those ``needed`` afterwards.

        The next kernel that wants memory then gets some that is still in a cache.
        """
        kept, calls = {slot.place for slot in _slots_in(needed)}, list(self.calls)
        for place, last in sorted(self._last.items(), key=lambda item: -item[1]):
            if place not in kept:
                calls.insert(last + 1, partial(self.frame.__setitem__, place, None))
        return tuple(calls)

    # -- the tape as a function ---------------------------------------------------------------------------------------------

    def step(self, out: Tensor, products: list[Product], others: list[Plain]) -> Callable[[Any, Any, Any], None]:
        """All calls, then out <- rho*out - eta*g + c. Without c the products scale what they are added to."""
        out = self.bind(out)
        sums = [(large.adding(self.bind(w), a, b), self.bind(a), self.bind(b)) for w, a, b in products]
        scaled = _joined(out, [self.bind(w) for w, _ in others])
        moved = [self.bind(w) for w, g in others if g is not None]
        gradients = [self.bind(g) for _, g in others if g is not None]
        calls, frame, now = self._with_memory_freed([sums, gradients]), self.frame, self.now
        nothing: list[Any] = [None] * len(frame)
        stay = not any(map(_is_slot, tree_leaves([[(a, b) for _, a, b in sums], gradients], is_leaf=_is_slot)))

        def by_columns(rho: Any, eta: Any, c: Tensor | None) -> None:
            """A block whose clients differ in their coefficients."""
            if c is None:
                out.mul_(rho[:, None])
            else:
                torch.addcmul(c, out, rho[:, None], out=out)
            for add_product_, a, b in sums:
                add_product_(now(a) * eta[:, None, None], now(b), beta=1.0, alpha=-1.0)
            for w, g in zip(moved, gradients, strict=True):
                w.addcmul_(eta.view(-1, *[1] * (w.ndim - 1)), now(g), value=-1.0)

        def by_numbers(rho: Any, eta: Any, c: Tensor | None) -> None:
            if c is not None:
                torch.add(c, out, alpha=rho, out=out)
                rho = 1.0
            for add_product_, a, b in sums if stay else [(add_, now(a), now(b)) for add_, a, b in sums]:
                add_product_(a, b, beta=rho, alpha=-eta)
            if scaled and rho == 0.0:
                foreach_zero_(scaled)
            elif scaled and rho != 1.0:
                foreach_mul_(scaled, rho)
            if moved:
                foreach_add_(moved, gradients if stay else now(gradients), alpha=-eta)

        def step(rho: Any, eta: Any, c: Tensor | None) -> None:
            for call in calls:
                call()
            (by_columns if isinstance(eta, Tensor) else by_numbers)(rho, eta, c)
            if nothing:
                frame[:] = nothing  # what moved is free again

        return step

    def giving(self, gradients: Sequence[Any]) -> Callable[[], list[Any]]:
        """All calls; returns the gradients, one per parameter: None, a tensor, or its two factors."""
        bound = [self.bind(g) for g in gradients]
        calls, frame, now = self._with_memory_freed(bound), self.frame, self.now
        nothing: list[Any] = [None] * len(frame)

        def give() -> list[Any]:
            for call in calls:
                call()
            found = [now(g) for g in bound]
            frame[:] = nothing
            return found

        return give


def _slots_in(tree: Any) -> list[Slot]:
    return [v for v in tree_leaves(tree, is_leaf=_is_slot) if isinstance(v, Slot)]


def _is_slot(value: Any) -> bool:
    return isinstance(value, Slot)


def _joined(x: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """The same numbers of x [P] in fewer pieces: parts that follow each other as one. Those of a block stay as they are."""
    if x.ndim > 1:
        return parts
    spans: list[list[int]] = []
    for part in parts:
        start = int(part.storage_offset() - x.storage_offset())
        if spans and spans[-1][1] == start:
            spans[-1][1] += part.numel()
        else:
            spans.append([start, start + part.numel()])
    return [x[start:stop] for start, stop in spans]


def _into(func: Any) -> tuple[Any, list[str]] | None:
    """The overload of func that writes into given tensors, if it has a kernel of its own (not one that computes and copies)."""
    if func.overloadpacket.__name__.endswith("_loss"):  # these use a scalar out as scratch space, and resize it
        return None
    wanted = [(a.name, str(a.type)) for a in arguments(func)]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        outs = [a.name for a in arguments(other) if a.is_out]
        if (
            outs
            and torch.Tag.generated not in other.tags
            and [(a.name, str(a.type)) for a in arguments(other) if not a.is_out] == wanted
        ):
            return other, outs
    return None
