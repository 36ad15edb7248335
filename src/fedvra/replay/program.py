"""Programs: one local step, or one step of a block of clients, ready to be replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvra.replay.compile import Recording, compile_step
from fedvra.replay.record import CannotReplayError, Recorder, layout, parameter_views

Loss = Callable[[Any, Tensor], Tensor]


@dataclass
class Program:
    """``program(rho, eta, c)``: out <- rho*out - eta*g(x; inputs, targets) + c, in place; fill `inputs` and `targets` before.

    In a block rho, eta and c may also be columns: tensors [M] for rho and eta, [M, P] for c.
    """

    inputs: Tensor
    targets: Tensor
    run: Callable[[Any, Any, Tensor | None], None]
    source: str
    """The replay as Python, for the curious."""
    tensors: list[Tensor]
    """Everything it is bound to: buffers, constants and views of x."""
    loss: Tensor
    """Where the loss at x (before the step) comes out: one number, or one per client [M]."""

    def nbytes(self) -> int:
        """Memory of all it is bound to."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors}
        return sum(storages.values())

    @torch.no_grad()
    def __call__(self, rho: float | Tensor, eta: float | Tensor, c: Tensor | None = None) -> None:
        self.run(rho, eta, c)


def trace_step(
    module: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    x: Tensor,
    out: Tensor | None = None,
    compute: torch.dtype | None = None,
) -> Program:
    """The step of one client, for batches shaped like this example.

    x [P] is the caller's vector, in ``named_parameters()`` order: the program is bound to its memory. ``out`` defaults to x,
    a local step; another vector gives the first step from a shared x0 without copying it. ``compute`` (e.g. bfloat16) runs the
    network in that dtype; x and its update stay as they are.
    """
    master = x
    if compute is not None and compute != x.dtype:
        x = x.to(compute)
    inputs = (inputs.to(compute) if compute is not None and inputs.is_floating_point() else inputs).clone()
    targets = targets.clone()
    names, shapes = zip(*((n, p.shape) for n, p in module.named_parameters()), strict=True)
    leaves = [v.detach().requires_grad_() for v in parameter_views(x, shapes)]
    state = _own_buffers(module, compute)
    before = {n: b.clone() for n, b in state.items()}

    def objective(batch: Tensor, wanted: Tensor) -> Tensor:
        outputs = torch.func.functional_call(module, {**state, **dict(zip(names, leaves, strict=True))}, (batch,))
        return loss(outputs if compute is None else outputs.to(master.dtype), wanted)

    with torch.enable_grad(), Recorder() as recorder:
        value = objective(inputs, targets)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    for n, b in state.items():
        if not torch.equal(b, before[n]):
            raise CannotReplayError(f"the step changes the buffer {n}")
    out = master if out is None else out
    refresh = [(x, master)] if x is not master else []
    recording = Recording(recorder.calls, x, gradients, (inputs, targets), value)
    compiled = compile_step(recording, out, parameter_views(out, shapes), refresh)
    program = Program(inputs, targets, *compiled)

    def gradient(batch: Tensor, wanted: Tensor) -> Tensor:
        with torch.enable_grad():
            found = torch.autograd.grad(objective(batch, wanted), leaves, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(found, leaves, strict=True)]
        ).to(out.dtype)

    _verify(program, out, gradient)
    return program


def trace_block(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, x: Tensor) -> Program:
    """The steps of M clients at once: batches [M, B, ...] and x [M, P], each client with its own parameters."""
    inputs, targets = inputs.clone(), targets.clone()
    recording, leaves, per_client = record_block(module, loss, inputs, targets, x)
    compiled = compile_step(recording, x, leaves)
    program = Program(inputs, targets, *compiled)
    _verify(program, x, lambda b, w: torch.cat([g.flatten(1) for g in per_client(leaves, b, w)[0]], 1))
    return program


Gradients = Callable[[list[Tensor], Tensor, Tensor], tuple[list[Tensor], Tensor]]


def record_block(
    module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, x: Tensor
) -> tuple[Recording, list[Tensor], Gradients]:
    """Every client's gradient, recorded: at its own row of x [M, P], or (x [P]) at a point that all share.

    Returns the recording, the parameters as views of x, and the function that was recorded.
    """
    names, shapes = zip(*((n, p.shape) for n, p in module.named_parameters()), strict=True)
    state = _own_buffers(module, None)

    def objective(parameters: list[Tensor], batch: Tensor, wanted: Tensor) -> Tensor:
        return loss(
            torch.func.functional_call(module, {**state, **dict(zip(names, parameters, strict=True))}, (batch,)), wanted
        )

    per_client = torch.func.vmap(torch.func.grad_and_value(objective), in_dims=(None if x.ndim == 1 else 0, 0, 0))
    leaves = [v.detach() for v in parameter_views(x, shapes)]
    fallback = torch._C._functorch._set_vmap_fallback_enabled  # type: ignore[attr-defined]
    fallback(False)  # a loop over clients in disguise: say no instead
    try:
        with Recorder() as recorder:
            gradients, losses = per_client(leaves, inputs, targets)
    except RuntimeError as error:
        raise CannotReplayError(f"vmap: {error}") from error
    finally:
        fallback(True)
    return Recording(recorder.calls, x, gradients, (inputs, targets), losses), leaves, per_client


def _own_buffers(module: nn.Module, compute: torch.dtype | None) -> dict[str, Tensor]:
    """Copies, so that tracing never touches the module."""
    return {
        n: (b.to(compute) if compute is not None and b.is_floating_point() else b).clone()
        for n, b in module.named_buffers()
    }


def _verify(program: Program, out: Tensor, gradient: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Try the program on a batch that it has not seen (inputs and targets paired differently), against autograd."""
    layouts = [(t, layout(t), t.data_ptr()) for t in program.tensors]
    batch, wanted, kept = program.inputs.roll(1, 0), program.targets.roll(2, 0), out.clone()
    if batch.is_floating_point():
        batch = batch * 0.75
    expected = gradient(batch, wanted)
    program.inputs.copy_(batch)
    program.targets.copy_(wanted)
    try:
        program(1.0, 0.5)
    except RuntimeError as error:
        raise CannotReplayError(f"the replay failed: {error}") from error
    finally:
        moved = (kept - out) / 0.5
        out.copy_(kept)
    if any((layout(t), t.data_ptr()) != (shape, pointer) for t, shape, pointer in layouts):
        raise CannotReplayError("a kernel moved its output")
    slack = 1e-8 if expected.dtype == torch.float64 else 1e-2  # wrong programs are wrong by far more
    if not (moved - expected).norm() <= slack * expected.norm() + 8 * torch.finfo(out.dtype).eps * kept.norm():
        raise CannotReplayError(
            "the replay does not follow autograd on another batch (does the module keep state or draw numbers?)"
        )
