"""Every name of torch that is not part of its public interface, in one place: where a new release breaks us, it breaks here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase as NormLayer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

__all__ = [
    "NormLayer",
    "TorchDispatchMode",
    "arguments",
    "bfloat16_kernels",
    "foreach_add_",
    "foreach_mul_",
    "foreach_zero_",
    "has_hooks",
    "is_mutable",
    "kernel",
    "memory",
    "module_hooks",
    "no_vmap_fallback",
    "onednn_linear",
    "overload_name",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "version",
]

foreach_add_, foreach_mul_, foreach_zero_ = torch._foreach_add_, torch._foreach_mul_, torch._foreach_zero_
"""One call for a list of tensors."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def kernel(func: Any) -> Any:
    """An operator without the layers that a call from outside goes through."""
    return func._op


def arguments(func: Any) -> list[Any]:
    """The arguments in an operator's schema: name, type, is_write, is_out."""
    return list(func._schema.arguments)


def is_mutable(func: Any) -> bool:
    """Whether an operator writes to one of its arguments."""
    return bool(func._schema.is_mutable)


def overload_name(func: Any) -> str:
    """Such as "Scalar" in ``aten.mul.Scalar``."""
    return str(func._overloadname)


def version(t: Tensor) -> int:
    """A count that grows whenever the tensor is written to."""
    return t._version


def memory(t: Tensor) -> int:
    """Identity of the memory behind t: views share it."""
    return int(t.untyped_storage()._cdata)


def module_hooks(module: nn.Module) -> bool:
    """Whether anything is called when the module runs."""
    return any(getattr(module, name, None) for name in _HOOKS)


def has_hooks(p: Tensor) -> bool:
    """Whether anything is called when the gradient of p is found."""
    return bool(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None))


def bfloat16_kernels() -> bool:
    """Whether this processor has kernels for bfloat16."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def onednn_linear() -> Any:
    """oneDNN's ``linear(a, w, bias, "none", [], "")``: a @ w.T + bias in new memory. None where torch is without oneDNN."""
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.enabled else None
    return None if packet is None else kernel(packet.default)


@contextmanager
def no_vmap_fallback() -> Iterator[None]:
    """Have ``vmap`` refuse what it can only do as a loop in disguise."""
    enable = torch._C._functorch._set_vmap_fallback_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)
