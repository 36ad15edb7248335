"""Products of large matrices, by whichever of torch's two libraries is faster on this processor.

torch multiplies float32 matrices with MKL, which keeps to AVX2 on processors that Intel did not make. oneDNN, which torch has
for convolutions, uses AVX-512 on all of them: on an AMD EPYC it has 223 GFLOPS in one thread where MKL has 103. It writes into
new memory and costs some 8 us per call, so it is for large products alone. Which of the two is taken depends on the processor
and on shapes, never on timings: one machine gives the same bits every time.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from fedvra.core.torch_private import onednn_linear

LARGE = 1_500_000
"""Multiplications in a product from which on oneDNN takes at most three quarters of MKL's time."""
LARGE_SUM = 4_000_000
"""The same for a product that is added to something, which MKL does on the way and oneDNN does not: nine tenths."""


@cache
def onednn_is_faster() -> bool:
    """Whether this processor has AVX-512 and MKL does not use it."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or onednn_linear() is None:
        return False
    return "GenuineIntel" not in _processor()


def _processor() -> str:
    """What the system says of it, its maker among other things."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()


def is_large(a: Tensor, b: Tensor, least: int = LARGE) -> bool:
    """Whether a [p, q] @ b [q, r] is for oneDNN here."""
    return (
        a.ndim == b.ndim == 2
        and a.dtype == b.dtype == torch.float32
        and a.device.type == b.device.type == "cpu"
        and a.shape[0] * b.numel() >= least
        and onednn_is_faster()
    )


def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """``torch.mm``, by oneDNN."""
    return out.copy_(_product(a, b))


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """``torch.addmm`` with one number per column, by oneDNN."""
    return out.copy_(_product(a, b, bias))


def adding(w: Tensor, a: Tensor, b: Tensor) -> Callable[..., Tensor]:
    """What adds the product of factors like these to w: ``add(a, b, beta=1, alpha=1)`` is w <- beta*w + alpha*a@b."""
    if w.ndim > 2:
        return w.baddbmm_
    return partial(_addmm_, w) if is_large(a, b, LARGE_SUM) else w.addmm_


def _addmm_(w: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    # The smaller factor is scaled, so that w is passed over once; rows of a in order are what oneDNN is fastest with.
    if a.numel() <= b.numel():
        a = torch.mul(a, alpha, out=a.new_empty(a.shape))
    else:
        b = b * alpha
    product = _product(a, b)
    return w.copy_(product) if beta == 0 else torch.add(product, w, alpha=beta, out=w)


class LinearLayers(TorchFunctionMode):
    """Within it linear layers without a graph multiply as recorded steps do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear and not kwargs and not torch.is_grad_enabled() and is_large(args[0], args[1].t()):
            a, w, *bias = args
            return _product(a, w.t(), *bias)
        return func(*args, **(kwargs or {}))


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    linear = onednn_linear()
    assert linear is not None
    found: Tensor = linear(a, b.t(), bias, "none", [], "")
    return found
