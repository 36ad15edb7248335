"""Recording: the aten calls of one eager forward and backward pass, with the tensors they read and wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


class CannotReplayError(Exception):
    """The step does something that a replay would get wrong; use autograd instead."""


@dataclass(frozen=True)
class Call:
    """One aten call: what ran, on what, and what came out (leaves, in order; None where an output was not asked for)."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Any]
    several: bool
    reads: frozenset[int] = field(init=False)
    writes: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        schema = self.func._schema
        written = [t for a, v in zip(schema.arguments, self.args, strict=False) if a.is_write for t in tensors_in(v)]
        object.__setattr__(self, "reads", frozenset(memory(t) for t in tensors_in((self.args, self.kwargs))))
        object.__setattr__(self, "writes", frozenset(memory(t) for t in (*tensors_in(self.outputs), *written)))

    @property
    def name(self) -> str:
        return str(self.func.overloadpacket.__name__)

    @property
    def in_place(self) -> bool:
        return bool(self.func._schema.is_mutable)

    @property
    def is_view(self) -> bool:
        return not self.in_place and bool(self.writes) and self.writes <= self.reads


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, the default, imports torch._dynamo: 1.3 s for a decorator that we do not need

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse(func, args)
        result = func(*args, **(kwargs or {}))
        self.calls.append(
            Call(func, tuple(args), dict(kwargs or {}), tree_leaves(result), isinstance(result, (tuple, list)))
        )
        return result


def _refuse(func: Any, args: Sequence[Any]) -> None:
    if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args):
        raise CannotReplayError(f"{func} draws random numbers")
    if torch.Tag.inplace_view in func.tags:
        raise CannotReplayError(f"{func} changes a shape in place")
    if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
        if any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1])):
            raise CannotReplayError(f"{func} selects by a mask")
    elif torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        raise CannotReplayError(f"{func} lets the data steer the program")


def _drops_nothing(func: Any, args: Sequence[Any]) -> bool:
    """Attention kernels count as random even when their dropout is zero."""
    names = [a.name for a in func._schema.arguments]
    return "dropout_p" in names and (len(args) <= names.index("dropout_p") or args[names.index("dropout_p")] == 0)


def memory(t: Tensor) -> int:
    """Identity of the memory behind t: views share it."""
    return int(t.untyped_storage()._cdata)


def tensors_in(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def layout(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.storage_offset()


def parameter_views(vector: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The parameters inside x [P], or inside every row of x [M, P]."""
    parts = torch.split(vector, [s.numel() for s in shapes], dim=-1)
    return [part.view(*vector.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]
