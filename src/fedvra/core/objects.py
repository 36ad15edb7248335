"""Objects that are what they hold: equal by value, the same after ``pickle`` and ``copy.deepcopy``.

Algorithms, samplers, work, partitions, policies, problems, experiments are described by their fields alone. Fields are numbers,
but also tables, tensors, modules and functions, which ``==`` compares by element, by identity, or not at all; :func:`equal`
knows them. Nothing here imports torch, which is slow to load: where a tensor is met, somebody has.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, SupportsIndex, TypeVar

import numpy as np

from fedvra.core.errors import UsageError

V = TypeVar("V", bound="Value")
_SCALARS = {bool, int, float, str, type(None)}
Begun = frozenset[tuple[int, int]]
"""Pairs of objects whose comparison has begun: they may refer to themselves."""


class Value:
    """Base of whatever is equal by its type and what it holds: a dataclass's fields, another class's attributes.

    ``@dataclass`` gives a class an equality of its own, which fails on tables. It leaves alone what it finds, so each subclass
    is given this one before the decorator sees it: whoever writes a new algorithm or sampler need not know.
    """

    _forgets: ClassVar[tuple[str, ...]] = ()
    """Attributes that a copy begins without: what was found out in passing."""
    _read_only: ClassVar[bool] = False
    """Whether its tables may not be written to, which an array loses when it is copied."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__eq__", "__hash__"):
            if name not in cls.__dict__:
                setattr(cls, name, getattr(cls, name))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return equal(_held(self), _held(other))

    def __hash__(self) -> int:
        held = _held(self).values() if dataclasses.is_dataclass(type(self)) else ()  # attributes may change
        return hash((type(self), *map(digest, held)))

    def __getstate__(self) -> Any:
        state = {**vars(self), **_held(self)}
        return {name: value for name, value in state.items() if name not in self._forgets}

    def __setstate__(self, state: Any) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
            for table in value if isinstance(value, tuple) else (value,):
                if self._read_only and isinstance(table, np.ndarray):
                    table.flags.writeable = False

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        kind = type(self).__name__
        for name, value in {kind: type(self), **self.__getstate__()}.items():
            if type(value) in _SCALARS:  # most are, and a round's work is pickled many times
                continue
            for thing in _nameless(value):
                where = "it" if name == kind else f"its {name}"
                raise UsageError(
                    f"{kind} cannot be pickled: {where} is {thing.__qualname__}, which another process could not find by that "
                    "name; define it at the top level of a module."
                )
        return super().__reduce_ex__(protocol)

    def __copy__(self: V) -> V:
        twin = object.__new__(type(self))
        twin.__setstate__(self.__getstate__())
        return twin

    def __deepcopy__(self: V, memo: dict[int, Any]) -> V:
        twin = memo[id(self)] = object.__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin


def equal(a: Any, b: Any, begun: Begun = frozenset()) -> bool:
    """Whether two things are the same value; NaN is the same as NaN.

    Lists, tuples and arrays are tables: the same where their numbers are. Tensors have a dtype besides. Modules are the same
    where their parts have the same classes, settings and ``state_dict``; functions where they are one.

    >>> equal([1, 2, math.nan], np.array([1.0, 2.0, math.nan])), equal([1, 2], [1, 3]), equal(len, min)
    (True, False, False)
    """
    if a is b:
        return True
    if (id(a), id(b)) in begun:
        return True  # as far as it depends on itself
    begun |= {(id(a), id(b))}
    torch = sys.modules.get("torch")
    if torch is not None and (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _equal_tensors(a, b)
    if torch is not None and isinstance(a, torch.nn.Module):
        return type(a) is type(b) and equal(_facts(a), _facts(b), begun)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _equal_arrays(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal(x, y, begun) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key], begun) for key in a)
    if type(a) is type(b):
        if isinstance(a, partial):
            return equal((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), begun)
        if isinstance(a, MethodType):
            return a.__func__ is b.__func__ and equal(a.__self__, b.__self__, begun)
        if isinstance(a, float | np.floating) and math.isnan(a):
            return math.isnan(b)
        if _bare(a):
            return equal(vars(a), vars(b), begun)
    return bool(a == b)


def digest(value: Any) -> Any:
    """Something to hash that is the same for equal values. Of tables, tensors and modules it says little, and costs little."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return digest(value.item())
    if isinstance(value, np.ndarray | list | tuple):
        return len(value)
    if isinstance(value, Mapping):
        return frozenset(value)
    if isinstance(value, partial):
        return digest(value.func)
    if isinstance(value, MethodType):
        return value.__func__
    if isinstance(value, float | np.floating) and math.isnan(value):
        return "nan"
    if _bare(value) or type(value).__hash__ is None or (torch is not None and isinstance(value, torch.nn.Module)):
        return type(value)
    return value


def _held(value: Any) -> dict[str, Any]:
    """What a value is: the fields of a dataclass; all attributes of another object but those that follow from the rest."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}
    return {
        name: held
        for name, held in vars(value).items()
        if name not in value._forgets and not isinstance(getattr(type(value), name, None), cached_property)
    }


def _bare(value: Any) -> bool:
    """Whether an object has no equality of its own, though it holds something."""
    plain = (FunctionType, BuiltinFunctionType, ModuleType, type)
    own: Any = type(value).__eq__
    return own is object.__eq__ and hasattr(value, "__dict__") and not isinstance(value, plain)


def _equal_arrays(a: Any, b: Any) -> bool:
    tables = (np.ndarray, list, tuple, int, float, np.generic)
    if not (isinstance(a, tables) and isinstance(b, tables)):
        return False
    try:
        a, b = np.asarray(a), np.asarray(b)
    except ValueError:  # rows of several lengths: no array
        return False
    numbers = a.dtype.kind in "fc" and b.dtype.kind in "fc"
    return bool(np.array_equal(a, b, equal_nan=numbers))


def _equal_tensors(a: Any, b: Any) -> bool:
    torch = sys.modules["torch"]
    lazy = torch.nn.parameter.is_lazy
    if lazy(a) or lazy(b):
        return bool(lazy(a) and lazy(b))
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout or a.device != b.device:
        return False
    if a.is_meta:  # a shape without content
        return True
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return bool(torch.equal(a, b) or ((a == b) | ((a != a) & (b != b))).all())


def _facts(module: Any) -> tuple[Any, ...]:
    """What makes a module what it is, its forward method aside."""
    parts = [(name, type(part).__qualname__, part.extra_repr()) for name, part in module.named_modules()]
    return parts, dict(module.state_dict()), [(name, p.requires_grad) for name, p in module.named_parameters()]


def _nameless(value: Any) -> Iterator[Any]:
    """The functions and classes in it that pickle would look for in vain."""
    torch = sys.modules.get("torch")
    if isinstance(value, FunctionType | type):
        if not _found(value):
            yield value
    elif isinstance(value, partial):
        yield from _nameless([value.func, value.args, value.keywords])
    elif isinstance(value, MethodType):
        yield from _nameless(value.__self__)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nameless(part)
    elif isinstance(value, dict):
        yield from _nameless(list(value.values()))
    elif torch is not None and isinstance(value, torch.nn.Module):
        for module in value.modules():
            yield from _nameless(type(module))
            own = {name: held for name, held in vars(module).items() if name != "_modules"}
            yield from _nameless(own)
    elif "<locals>" in type(value).__qualname__:
        yield type(value)


def _found(value: Any) -> bool:
    """Whether its name leads to it."""
    module = sys.modules.get(value.__module__)
    try:
        return module is None or attrgetter(value.__qualname__)(module) is value
    except AttributeError:  # <lambda>, or a name within a function
        return False
