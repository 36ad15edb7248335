"""The check: is a replayed gradient the one that autograd finds, parameter by parameter?

Float32 is held to float64: the replay may be four times as far from the float64 gradient as autograd in float32 is, plus a
few units of rounding at the scale of the whole step, so that a gradient that is truly zero does not trip it. A kink (a ReLU
whose input rounds to the other side) can make two right results differ, so a difference counts only if it is there again at
points nearby.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedvra.local.loan import Batch
from fedvra.local.replay.record import CannotReplayError
from fedvra.local.subject import Subject

TIMES_AUTOGRAD = 4.0
"""How much farther from float64 than autograd's own float32 a replay may be."""
ROUNDINGS = 32.0
"""Units of rounding, at the scale of the whole gradient, that are never held against a parameter."""
LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Relative slack where there is nothing more exact to compare with (float64 itself, random draws, low precision)."""
NEARBY = 1e-3
"""Relative size of the perturbations at which a difference must show again."""
TRIES = 3

Replay = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From x [P] to the replayed gradient there and to what became of the statistics."""


class Reference:
    """Autograd on the module itself, in the dtype of the step and, for float32, in float64."""

    def __init__(self, subject: Subject, compute: torch.dtype | None = None, draws: bool = False) -> None:
        self.subject, self.compute = subject, compute
        self.exact = not draws and compute is None and subject.spec.dtype == torch.float32

    def check(self, replay: Replay, x: Tensor, aux: Tensor | None, batch: Batch, key: int) -> None:
        """Raise CannotReplayError unless the replay gives the gradient at x, or else at one of the points nearby."""
        wrong = ""
        for attempt in range(TRIES):
            point = x.clone() if attempt == 0 else _nearby(x, attempt)
            found, aux_found = replay(point)
            wrong = self._wrong(found, aux_found, point, aux, batch, key)
            if not wrong:
                return
        raise CannotReplayError(f"the replay does not follow autograd: {wrong} differs")

    def _wrong(
        self, found: Tensor, aux_found: Tensor | None, x: Tensor, aux: Tensor | None, batch: Batch, key: int
    ) -> str:
        own, aux_own = self.subject.gradients(x, aux, batch, key, compute=self.compute)
        loose = LOOSE[self.compute or x.dtype]
        wrong = compare(self.subject, found, own, self._high(x, aux, batch, key), loose)
        if wrong:
            return f"the gradient of {wrong}"
        if aux_found is not None and aux_own is not None:
            views, wanted = self.subject.aux_spec.views(aux_found), self.subject.aux_spec.views(aux_own)
            for name, view in views.items():
                if not float((view - wanted[name]).norm()) <= loose * float(wanted[name].norm()) + loose:
                    return name
        return ""

    def _high(self, x: Tensor, aux: Tensor | None, batch: Batch, key: int) -> list[Tensor | None] | None:
        if not self.exact:
            return None
        try:
            return self.subject.gradients(x, aux, batch, key, torch.float64)[0]
        except Exception:  # a model may insist on its dtype: then its own is all there is to compare with
            self.exact = False
            return None


def compare(
    subject: Subject,
    found: Tensor,
    own: Sequence[Tensor | None],
    high: Sequence[Tensor | None] | None,
    loose: float,
) -> str:
    """The name of the first parameter whose gradient is not what it should be; empty where all are."""
    views = subject.spec.views(found)
    wanted = [_dense(g, v) for g, v in zip(high or own, views.values(), strict=True)]
    scale = float(torch.stack([w.norm() for w in wanted]).norm())
    rounding = ROUNDINGS * torch.finfo(found.dtype).eps * scale
    for (name, view), want, mine in zip(views.items(), wanted, own, strict=True):
        error = float((view.double() - want).norm())
        allowed = loose * float(want.norm())
        if high is not None:
            allowed = TIMES_AUTOGRAD * float((_dense(mine, view) - want).norm())
        if not error <= allowed + max(rounding, 0.1 * loose * scale if loose > 1e-3 else 0.0):
            return name
    return ""


def _nearby(x: Tensor, attempt: int) -> Tensor:
    generator = torch.Generator().manual_seed(attempt)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    return x * (1 + NEARBY * noise)


def _dense(g: Tensor | None, like: Tensor) -> Tensor:
    if g is None:
        return torch.zeros_like(like, dtype=torch.float64)
    return (g.to_dense() if g.layout != torch.strided else g).double()
