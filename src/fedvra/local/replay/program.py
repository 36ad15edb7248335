"""Programs: one local step, or one step of a block of clients, ready to be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedvra.core.torch_private import no_vmap_fallback
from fedvra.data import trees
from fedvra.local.loan import Batch, holders
from fedvra.local.randomness import kept_generators, python_draws, seed_all
from fedvra.local.replay.agreement import same_calls
from fedvra.local.replay.check import Reference
from fedvra.local.replay.compile import Recording, compile_step
from fedvra.local.replay.record import (
    CannotReplayError,
    Recorder,
    layout,
    parameter_views,
    refuse_module,
    tensors_in,
)
from fedvra.local.subject import Subject

KEY = 0
"""Where random numbers start while a program is made and tried."""


@dataclass
class Program:
    """``program(rho, eta, c)``: out <- rho*out - eta*g(x; batch) + c, in place; fill ``batch`` before.

    In a block rho, eta and c may also be columns: tensors [M] for rho and eta, [M, P] for c.
    """

    batch: Batch
    """The trees of tensors that inputs and targets are put into."""
    out: Tensor
    """What is updated: x itself, or the move from it."""
    run: Callable[[Any, Any, Tensor | None], None]
    tensors: list[Tensor]
    """Everything it is bound to: buffers, constants and views of x."""
    loss: Tensor
    """Where the loss at x (before the step) comes out: one number, or one per client [M]."""
    draws: bool = False
    """Whether it draws random numbers, from torch's global generator."""
    places: list[Tensor] = field(init=False)
    """The tensors of ``batch``, in order."""

    def __post_init__(self) -> None:
        self.places = tensors_in(self.batch)

    def nbytes(self) -> int:
        """Memory of all it is bound to."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors}
        return sum(storages.values())

    def fill(self, batch: Batch) -> None:
        for place, values in zip(self.places, tensors_in(batch), strict=True):
            place.copy_(values)

    @torch.no_grad()
    def __call__(self, rho: float | Tensor, eta: float | Tensor, c: Tensor | None = None) -> None:
        self.run(rho, eta, c)

    def gradient(self) -> Tensor:
        """The gradient at x for the batch it is filled with, as the replay computes it; ``out`` stays as it is."""
        kept = self.out.clone()
        try:
            self(0.0, -1.0)
            return self.out.clone()
        finally:
            with torch.no_grad():
                self.out.copy_(kept)


def trace_step(
    subject: Subject,
    batches: tuple[Batch, Batch],
    points: tuple[Tensor, Tensor],
    x: Tensor,
    aux: Tensor | None = None,
    out: Tensor | None = None,
    compute: torch.dtype | None = None,
) -> Program:
    """The step of one client, for batches shaped like these; recorded on the first and tried on the second.

    Args:
        points: two vectors at which it is recorded and tried.
        x: [P], in the order of the spec: the program is bound to its memory.
        aux: the statistics [K], likewise.
        out: defaults to x, a local step; another vector gives the first step from a shared x0 without copying it.
        compute: a dtype (e.g. bfloat16) in which to run the network; x and its update stay as they are.
    """
    refuse_module(subject.module, subject.loss)
    recorded, other = batches
    low = x if compute is None or compute == x.dtype else x.to(compute)
    places = trees.map(torch.clone, recorded[0]), trees.map(torch.clone, recorded[1])
    start = None if aux is None else aux.clone()
    recordings: list[Recording] = []
    for batch, point in (
        (other, points[1]),
        (recorded, points[0]),
    ):  # the one that is compiled last: its values are there
        with torch.no_grad():
            x.copy_(point)
            low.copy_(point)
            for place, values in zip(tensors_in(places), tensors_in(batch), strict=True):
                place.copy_(values)
        recordings.append(_record(subject, places, low, aux, compute))
        if aux is not None and start is not None:
            aux.copy_(start)
    same_calls(recordings[1].calls, recordings[0].calls)
    out = x if out is None else out
    refresh = [(low, x)] if low is not x else []
    shapes = [p.shape for p in subject.parameters]
    compiled = compile_step(recordings[1], out, parameter_views(out, shapes), refresh)
    program = Program(places, out, *compiled, draws=any(c.draws for c in recordings[1].calls))
    with torch.no_grad():
        x.copy_(points[1])
        program.fill(other)
    check_step(subject, program, x, aux, compute, KEY)
    return program


def _record(subject: Subject, batch: Batch, x: Tensor, aux: Tensor | None, compute: torch.dtype | None) -> Recording:
    """One forward and backward pass of the module itself, its parameters being views of x."""
    counters = [held.tensor for held, _ in subject.counters]
    kept = [(held.tensor, held.tensor.data) for held in subject.others] if x.dtype != subject.spec.dtype else []
    with subject.aside(KEY):
        try:
            for tensor, data in kept:
                if data.is_floating_point():
                    tensor.data = data.to(x.dtype)
            subject.point_at(x, aux)
            before, versions = python_draws(), subject.constants()
            writable = [*([] if aux is None else [aux]), *counters]
            with torch.enable_grad(), Recorder(subject.parameters, writable) as recorder:
                value = subject.value(batch, compute)
                gradients = torch.autograd.grad(value, subject.parameters, allow_unused=True)
            if python_draws() != before:
                raise CannotReplayError("the step draws random numbers from Python or NumPy")
            changed = subject.python.changed()
            if changed:
                raise CannotReplayError(f"the step changes {changed[0]}")
            if subject.constants() != versions or any(held.now() is not held.tensor for held in subject.others):
                raise CannotReplayError("the step replaces a buffer")
        finally:
            for tensor, data in kept:
                tensor.data = data
    return Recording(recorder.calls, x, gradients, tensors_in(batch), value, [] if aux is None else [aux], counters)


def replayed(
    program: Program, x: Tensor, aux: Tensor | None, key: int
) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    """The gradient by the program (filled with its batch) at given points, for the check; x and aux stay as they are."""
    layouts = [(t, layout(t), t.data_ptr()) for t in program.tensors]

    def replay(point: Tensor) -> tuple[Tensor, Tensor | None]:
        kept, start = x.clone(), None if aux is None else aux.clone()
        with torch.no_grad(), kept_generators():
            x.copy_(point)
            seed_all(key)
            found, after = program.gradient(), None if aux is None else aux.clone()
            x.copy_(kept)
            if aux is not None and start is not None:
                aux.copy_(start)
        if any((layout(t), t.data_ptr()) != (shape, pointer) for t, shape, pointer in layouts):
            raise CannotReplayError("a kernel moved its output")
        return found, after

    return replay


def trace_block(
    subject: Subject, batches: tuple[Batch, Batch], points: tuple[Tensor, Tensor], x: Tensor, out: Tensor
) -> Program:
    """The steps of M clients at once: batches [M, B, ...] and x [M, P], each client with its own parameters.

    ``out`` [M, P] is what is updated: x itself, or another vector that gathers gradients.
    """
    recording, leaves, places = record_block(subject, batches, points, x)
    views = leaves if out is x else parameter_views(out, [p.shape for p in subject.parameters])
    compiled = compile_step(recording, out, views)
    program = Program(places, out, *compiled)
    program.fill(batches[1])
    check_block(subject, program, x, points[1], sorted({0, len(x) // 2, len(x) - 1}))
    return program


def check_step(
    subject: Subject, program: Program, x: Tensor, aux: Tensor | None, compute: torch.dtype | None, key: int
) -> None:
    """Compare the gradient at x, on the batch the program is filled with, with autograd."""
    start = None if aux is None else aux.clone()
    batch = trees.map(torch.clone, program.batch[0]), trees.map(torch.clone, program.batch[1])
    Reference(subject, compute, program.draws).check(replayed(program, x, aux, key), x.clone(), start, batch, key)


def check_block(subject: Subject, program: Program, x: Tensor, point: Tensor, clients: Iterable[int]) -> None:
    """Compare the gradients of these clients of a block [M, P] with autograd, one by one."""
    reference = Reference(subject)
    with torch.no_grad():
        for k in clients:

            def replay(at: Tensor, k: int = k) -> tuple[Tensor, None]:
                x.copy_(point)
                x[k].copy_(at)
                return program.gradient()[k], None

            reference.check(replay, point[k], None, of_client(program.batch, k), KEY)
        x.copy_(point)


def record_block(
    subject: Subject, batches: tuple[Batch, Batch], points: tuple[Tensor, Tensor], x: Tensor
) -> tuple[Recording, list[Tensor], Batch]:
    """Every client's gradient, recorded: at its own row of x [M, P], or (x [P]) at a point that all share.

    Returns the recording, the parameters as views of x, and the memory that batches are put into.
    """
    module = subject.module
    refuse_module(module, subject.loss)
    if subject.statistics or subject.counters:
        raise CannotReplayError("the model has statistics that training changes, one set for each client")
    names, shapes = subject.spec.names, [p.shape for p in subject.parameters]

    def objective(parameters: list[Tensor], inputs: Any, targets: Any) -> Tensor:
        named = dict(zip(names, parameters, strict=True))

        def model(*given: Any, **by_name: Any) -> Any:
            return torch.func.functional_call(module, named, given, by_name)

        return subject.loss(trees.call(model, inputs), targets)

    per_client = torch.func.vmap(torch.func.grad_and_value(objective), in_dims=(None if x.ndim == 1 else 0, 0, 0))
    leaves = [v.detach() for v in parameter_views(x, shapes)]
    places = trees.map(torch.clone, batches[0][0]), trees.map(torch.clone, batches[0][1])
    own = holders(module)
    recordings = []
    for batch, point in ((batches[1], points[1]), (batches[0], points[0])):  # the one that is compiled last
        with torch.no_grad():
            x.copy_(point)
            for place, values in zip(tensors_in(places), tensors_in(batch), strict=True):
                place.copy_(values)
        try:
            with subject.aside(KEY), no_vmap_fallback():
                before = python_draws()
                with Recorder((), forbidden=subject.parameters) as recorder:
                    gradients, losses = per_client(leaves, *places)
                changed = subject.python.changed()
                if python_draws() != before or changed:
                    raise CannotReplayError(
                        f"the step changes what Python keeps ({', '.join(changed) or 'a generator'})"
                    )
        finally:
            for held in own:  # layers that occur twice are not given their own parameters back by functional_call
                held.put_back()
        recordings.append(Recording(recorder.calls, x, gradients, tensors_in(places), losses))
    same_calls(recordings[1].calls, recordings[0].calls)
    return recordings[1], leaves, places


def of_client(batch: Batch, k: int) -> Batch:
    """One client's batch out of those of a block."""
    return trees.map(lambda t: t[k], batch[0]), trees.map(lambda t: t[k], batch[1])
