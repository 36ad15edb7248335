"""What modules and losses keep in Python: counters, lists, tensors in plain attributes, generators of their own.

Such state is no parameter and no buffer, so no algorithm carries it from client to client. It is found by comparing before and
after; whatever changes is put back to where it started before every client's work, so that a client's result depends neither on
who worked before it nor in which process. That holds for generators of a module's own too: use torch's, Python's or NumPy's
global ones, which are seeded per (seed, round, client), to have other numbers in every round.
"""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core.errors import UsageError
from fedvra.local.held_values import GENERATORS, fingerprint, generators, position, same, sure, walk

_OWN_OF_MODULES = {"_parameters", "_buffers", "_modules", "training"}
_LIBRARIES = ("torch.", "numpy.", "builtins")
LARGE = 64 << 20
"""Bytes above which a tensor in an attribute is taken to be data, which nobody changes in place."""


@dataclass(frozen=True)
class Slot:
    """One place in Python that holds a value: an attribute, a variable of an enclosing function, a global."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]


class PythonState:
    """The state that these modules and functions keep in Python, as it was when this object was made."""

    def __init__(self, *roots: Any, known: Iterable[Tensor] = ()) -> None:
        """``known`` tensors (parameters and buffers) may change where they also lie in a list or an attribute."""
        self._holders: list[tuple[dict[str, Any], frozenset[str]]] = []
        self.slots = list(_slots(roots, self._holders))
        self._known = {id(t) for t in known}
        memo: dict[int, Any] = {}
        for slot in self.slots:
            _share(slot.get(), memo, self._known)
        self._kept = [(slot, slot.get(), _copy(slot.get(), memo)) for slot in self.slots]
        self._before = [fingerprint(value, self._known) for _, value, _ in self._kept]
        self._sure = [sure(value, self._known) for _, value, _ in self._kept]
        self.generators = generators(slot.get() for slot in self.slots)
        self._positions = [position(g) for g in self.generators]
        self._iterators = {slot.name for slot, value, _ in self._kept if isinstance(value, Iterator)}
        self.changing = set(self._iterators)
        """Names of the slots that change: those seen to, and iterators, which do not show it."""

    def changed(self) -> list[str]:
        """Names of the slots whose value is no longer what it was; remembered, for :meth:`restart`."""
        found = [
            slot.name
            for (slot, value, _), sure, before in zip(self._kept, self._sure, self._before, strict=True)
            if not (slot.get() is value and sure(value)) and not same(before, fingerprint(slot.get(), self._known))
        ]
        found += self._iterators
        found += [key for holder, keys in self._holders if len(holder) != len(keys) for key in holder.keys() - keys]
        self.changing.update(found)
        return found

    def restart(self) -> None:
        """Put back what was seen to change."""
        for slot, _, kept in self._kept:
            if slot.name in self.changing:
                slot.put(_again(slot.name, kept, self._known))
        self._forget()

    def restore(self) -> None:
        """Put everything that was seen to change back for good: the user's objects hold what they held."""
        for slot, value, kept in self._kept:
            if slot.name in self.changing:
                if kept is not _Uncopied and kept is not value:
                    _refill(value, kept)
                slot.put(value)
        self._forget()

    def _forget(self) -> None:
        """Attributes that were not there, and numbers that were drawn."""
        for holder, keys in self._holders:
            for key in holder.keys() - keys:
                del holder[key]
        for generator, kept in zip(self.generators, self._positions, strict=True):
            position(generator, kept)


def _refill(value: Any, kept: Any) -> None:
    """The object that the user knows, holding what it held."""
    if isinstance(value, Tensor):
        value.data.copy_(kept)
    elif isinstance(value, np.ndarray):
        value[...] = kept
    elif isinstance(value, list | deque):
        value.clear()
        value.extend(kept)
    elif isinstance(value, dict | set):
        value.clear()
        value.update(kept)
    elif hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(vars(kept))


def _slots(roots: Iterable[Any], holders: list[tuple[dict[str, Any], frozenset[str]]]) -> Iterator[Slot]:
    """Every attribute of the modules among the roots, and every variable that their functions refer to."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        root = waiting.pop()
        if id(root) in seen:
            continue
        seen.add(id(root))
        if isinstance(root, nn.Module):
            for name, module in root.named_modules():
                seen.add(id(module))
                holders.append((vars(module), frozenset(vars(module))))
                forward = getattr(type(module), "forward", None)
                if isinstance(forward, types.FunctionType) and not type(module).__module__.startswith(_LIBRARIES):
                    waiting.append(forward)
                for key in vars(module):
                    if key not in _OWN_OF_MODULES and not key.endswith("_hooks") and not key.startswith("_is_full"):
                        yield _item(f"{name}.{key}".lstrip("."), vars(module), key)
        elif isinstance(root, types.MethodType):
            waiting += [root.__self__, root.__func__]
        elif isinstance(root, types.FunctionType):
            if root.__module__ is not None and f"{root.__module__}.".startswith(_LIBRARIES):
                continue
            names = root.__code__.co_freevars
            for name, cell in zip(names, root.__closure__ or (), strict=True):
                if _filled(cell):
                    waiting.append(cell.cell_contents)
                    yield Slot(
                        f"{root.__name__}: {name}", _reader(cell, "cell_contents"), _writer(cell, "cell_contents")
                    )
            for name in root.__code__.co_names:
                if isinstance(root.__globals__.get(name), (int, float, list, dict, set, deque, *GENERATORS)):
                    yield _item(f"{root.__name__}: {name}", root.__globals__, name)
                elif isinstance(root.__globals__.get(name), (types.FunctionType, nn.Module)):
                    waiting.append(root.__globals__[name])
        elif hasattr(root, "func") and hasattr(root, "keywords"):  # functools.partial
            waiting += [root.func, *root.args, *root.keywords.values()]
        elif hasattr(root, "__dict__") and not isinstance(root, (type, types.ModuleType, Tensor)):
            for key in vars(root):
                yield _item(f"{type(root).__name__}.{key}", vars(root), key)
            call = vars(type(root)).get("__call__")
            if isinstance(call, types.FunctionType):
                waiting.append(call)


def _item(name: str, holder: dict[str, Any], key: str) -> Slot:
    def put(value: Any) -> None:
        holder[key] = value

    return Slot(name, lambda: holder.get(key), put)


def _reader(holder: Any, key: str) -> Callable[[], Any]:
    return lambda: getattr(holder, key)


def _writer(holder: Any, key: str) -> Callable[[Any], None]:
    return lambda value: setattr(holder, key, value)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # an enclosing function's variable that has no value yet
        return False


def _share(value: Any, memo: dict[int, Any], known: set[int]) -> None:
    """Have copies refer to the same modules, functions, generators and known tensors; other tensors are cloned."""
    for one in walk(value):
        if isinstance(one, Tensor) and id(one) not in known and _bytes(one) < LARGE:
            memo.setdefault(id(one), one.detach().clone().requires_grad_(one.requires_grad and one.is_leaf))
        elif isinstance(one, (Tensor, nn.Module, *GENERATORS)) or callable(one):
            memo[id(one)] = one


def _bytes(t: Tensor) -> int:
    return t.nbytes if t.layout == torch.strided else t._nnz() * t.itemsize


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # locks, files, whatever a user keeps: it matters only if it changes
        return _Uncopied


class _Uncopied:
    pass


def _again(name: str, kept: Any, known: set[int]) -> Any:
    if kept is _Uncopied:
        raise UsageError(
            f"training changes {name}, which cannot be copied, so it cannot be put back for the next client: keep it out "
            "of the model and the loss, or make it a buffer."
        )
    memo: dict[int, Any] = {}
    _share(kept, memo, known)
    return copy.deepcopy(kept, memo)
