"""Recording: the aten calls of one eager forward and backward pass, with the tensors they read and wrote.

What a recording cannot see is refused: values that leave tensors for Python, memory that is neither the recording's own nor
declared, kernels of other libraries, compiled functions. Two recordings on different data must come to the same calls
(``agreement``), so that a value that got into a call by a way nobody thought of shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedvra.core.torch_private import (
    TorchDispatchMode,
    arguments,
    has_hooks,
    is_mutable,
    memory,
    module_hooks,
    tree_leaves,
    tree_map_only,
)

aten = torch.ops.aten

_READS = {
    getattr(Tensor, name)
    for name in (
        *("tolist", "numpy", "item", "__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__"),
        *("__contains__", "__dlpack__"),
    )
}
_READ_BY_KERNELS = {"_pack_padded_sequence", "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only"}
"""Kernels that steer by what small tensors hold (lengths, offsets): replayed on other data they may go wrong."""
_DRAWS = {
    "bernoulli",
    "bernoulli_",
    "normal_",
    "uniform_",
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "native_dropout",
}


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
        written = written_by(self.func, self.args)
        object.__setattr__(self, "reads", frozenset(memory(t) for t in tensors_in((self.args, self.kwargs))))
        object.__setattr__(self, "writes", frozenset(memory(t) for t in (*tensors_in(self.outputs), *written)))

    def with_other(self, t: Tensor, other: Tensor) -> Call:
        """The same call with another tensor in place of t."""
        if not any(v is t for v in tree_leaves((self.args, self.kwargs, self.outputs))):
            return self
        args, kwargs, outputs = tree_map_only(
            Tensor, lambda v: other if v is t else v, (self.args, self.kwargs, self.outputs)
        )
        return Call(self.func, args, kwargs, outputs, self.several)

    @property
    def name(self) -> str:
        return str(self.func.overloadpacket.__name__)

    @property
    def in_place(self) -> bool:
        return is_mutable(self.func)

    @property
    def draws(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.func.tags and self.name in _DRAWS

    @property
    def is_view(self) -> bool:
        return not self.in_place and bool(self.writes) and self.writes <= self.reads


def written_by(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The arguments that a call writes to. BatchNorm's schema does not say that it updates the running statistics."""
    if func is aten.native_batch_norm.default and args[5]:
        return tensors_in(args[3:5])
    return [t for a, v in zip(arguments(func), args, strict=False) if a.is_write for t in tensors_in(v)]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every call.

    Args:
        parameters: what the step is to differentiate by; any other leaf that asks for a gradient is refused.
        writable: tensors besides its own that the step may change (statistics, counters).
        forbidden: tensors that it must not read (the module's own parameters, where others stand in for them).
    """

    def __init__(
        self, parameters: Iterable[Tensor], writable: Iterable[Tensor] = (), forbidden: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._reads = _Reads()
        self._parameters = {memory(t) for t in parameters}
        self._allowed = {memory(t) for t in writable}
        self._forbidden = {memory(t) for t in forbidden}
        self._born: set[int] = set()
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, the default, imports torch._dynamo: 1.3 s for a decorator that we do not need

    def __enter__(self) -> Recorder:
        self._reads.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._reads.__exit__(*error)  # type: ignore[no-untyped-call]
        if self._reads.refused and error[0] is None:  # raised where it happened, and caught by the user's own code
            raise CannotReplayError(self._reads.refused)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._refuse(func, args)
        if func is aten.as_strided_.default and _keeps_layout(*args):
            return func(*args)  # strides of dimensions of size 1: nothing that anybody reads
        if torch.Tag.inplace_view in func.tags:
            return self._reshaped(func, args, dict(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        given, named = tree_map_only(Tensor, self._bound, (tuple(args), dict(kwargs or {})))
        call = Call(func, given, named, tree_leaves(result), isinstance(result, (tuple, list)))
        self._born |= call.writes - call.reads
        if any(memory(t) not in self._born | self._allowed for t in written_by(func, args)):
            raise CannotReplayError(f"{func} writes to the parameters, to the batch, or to a tensor that is no buffer")
        self.calls.append(call)
        return result

    def _reshaped(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """A shape changed in place is noted as a view: earlier calls get an alias that has the shape as it was."""
        t, plain = args[0], _plain_view(func)
        if plain is None or memory(t) not in self._born:
            raise CannotReplayError(f"{func} changes a shape in place")
        old = t.detach()
        self.calls = [c.with_other(t, old) for c in self.calls]
        func(*args, **kwargs)
        self.calls.append(Call(plain, (old, *args[1:]), kwargs, [t], False))
        return t  # type: ignore[no-any-return]

    def _bound(self, t: Tensor) -> Tensor:
        """Tensors from outside by an alias: the module's own are pointed elsewhere later."""
        if memory(t) in self._born:
            return t
        if id(t) not in self._aliases:
            self._aliases[id(t)] = (t, t.detach())
        return self._aliases[id(t)][1]

    def _refuse(self, func: Any, args: Sequence[Any]) -> None:
        if func.namespace != "aten" or func.overloadpacket.__name__ in _READ_BY_KERNELS:
            raise CannotReplayError(f"{func} may steer by what the data hold")
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args):
            generator = any(isinstance(a, torch.Generator) for a in args)
            if generator or func.overloadpacket.__name__ not in _DRAWS:
                raise CannotReplayError(f"{func} draws random numbers")
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            if any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1])):
                raise CannotReplayError(f"{func} selects by a mask")
        elif torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise CannotReplayError(f"{func} lets the data steer the program")
        for t in tensors_in(args):
            known = memory(t) in self._born or memory(t) in self._parameters
            if memory(t) in self._forbidden or (t.requires_grad and t.is_leaf and not known):
                raise CannotReplayError(f"{func} reads parameters past the model's own attributes")


class _Reads(TorchFunctionMode):
    """Refuses values that leave tensors for Python: a recording would take them for constants."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            self.refused = f"Tensor.{func.__name__} hands what the data hold to Python"
            raise CannotReplayError(self.refused)
        return func(*args, **(kwargs or {}))


def refuse_module(module: nn.Module, loss: Any) -> None:
    """What calls alone do not show: hooks, which a replay would not run, and code that torch compiled."""
    for name, part in module.named_modules():
        where = f"layer {name or type(module).__name__!r}"
        if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
            raise CannotReplayError(f"{where} is compiled")
        if module_hooks(part):
            raise CannotReplayError(f"{where} has hooks")
    for name, p in module.named_parameters():
        if has_hooks(p):
            raise CannotReplayError(f"parameter {name} has hooks")
    if isinstance(loss, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        raise CannotReplayError("the loss is compiled")


def _plain_view(func: Any) -> Any:
    """transpose for transpose_, and the like; None where there is none."""
    packet = getattr(aten, func.overloadpacket.__name__.rstrip("_"), None)
    wanted = [(a.name, str(a.type)) for a in arguments(func)]
    for name in packet.overloads() if packet is not None else ():
        other = getattr(packet, name)
        if [(a.name, str(a.type)) for a in arguments(other)] == wanted:
            return other
    return None


def _keeps_layout(t: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> bool:
    wide = [(n, s) for n, s in zip(size, stride, strict=True) if n > 1]
    return (
        tuple(size) == tuple(t.shape)
        and offset in (None, t.storage_offset())
        and wide == [(n, s) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1]
    )


def _drops_nothing(func: Any, args: Sequence[Any]) -> bool:
    """Attention kernels count as random even when their dropout is zero."""
    names = [a.name for a in arguments(func)]
    return "dropout_p" in names and (len(args) <= names.index("dropout_p") or args[names.index("dropout_p")] == 0)


def tensors_in(tree: Any) -> list[Tensor]:
    if type(tree) is tuple and all(
        isinstance(t, Tensor) for t in tree
    ):  # a batch of two arrays: the usual case, and faster
        return list(tree)
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def layout(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.storage_offset()


def parameter_views(vector: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The parameters inside x [P], or inside every row of x [M, P]."""
    parts = torch.split(vector, [s.numel() for s in shapes], dim=-1)
    return [part.view((*vector.shape[:-1], *shape)) for part, shape in zip(parts, shapes, strict=True)]
