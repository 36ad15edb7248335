"""What an object holds, however deep, as something that can be compared: numbers, tensors, containers, generators."""

from __future__ import annotations

import operator
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core.torch_private import version

SCALARS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
CONTAINERS = (list, dict, set, deque, tuple)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
MOST_VALUES = 100_000
"""Values looked through before giving up: configurations have hundreds, a data set in an attribute may have millions."""


def walk(value: Any) -> Iterator[Any]:
    """The value and all that it holds, as far as it is plain data; modules, functions and classes are not entered."""
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < MOST_VALUES:
        one = waiting.pop()
        yield one
        if isinstance(one, (*SCALARS, Tensor, np.ndarray, nn.Module, type, types.ModuleType, *GENERATORS)):
            continue
        if id(one) in seen or callable(one):
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, CONTAINERS):
            waiting += list(one)
        elif hasattr(one, "__dict__"):
            waiting += list(vars(one).values())


def fingerprint(value: Any, known: set[int]) -> list[Any]:
    """Comparable: numbers and words by value, tensors by identity and version, arrays by content."""
    found: list[Any] = []
    for one in walk(value):
        if isinstance(one, SCALARS):
            found.append(one)
        elif isinstance(one, Tensor):
            found += [one, 0 if id(one) in known or one.is_inference() else version(one)]
        elif isinstance(one, np.ndarray):
            found.append(one.tobytes() if one.nbytes < 1 << 20 and one.dtype != object else id(one))
        elif isinstance(one, GENERATORS):
            found.append(
                repr(position(one)) if not isinstance(one, torch.Generator) else position(one).numpy().tobytes()
            )
        elif isinstance(one, CONTAINERS):
            found += [type(one).__name__, len(one)]
        else:
            found.append(id(one) if callable(one) or isinstance(one, nn.Module) else type(one).__name__)
    return found


def sure(value: Any, known: set[int]) -> Callable[[Any], bool]:
    """Tells of the very same object at no cost that it holds what it held: most are numbers, functions or empty dicts."""
    if isinstance(value, CONTAINERS) and not value:
        return operator.not_
    sure = all(isinstance(one, (*SCALARS, tuple)) or callable(one) or id(one) in known for one in walk(value))
    return lambda _: sure


def same(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    for one, other in zip(a, b, strict=True):
        if one is other:
            continue
        if isinstance(one, Tensor) or isinstance(other, Tensor) or type(one) is not type(other):
            return False
        if one != other and not (one != one and other != other):
            return False
    return True


def generators(values: Iterable[Any]) -> list[Any]:
    found = {id(one): one for value in values for one in walk(value) if isinstance(one, GENERATORS)}
    return [g for g in found.values() if g is not torch.default_generator]


def position(generator: Any, put: Any = None) -> Any:
    """The generator's state; given one, set to it."""
    if isinstance(generator, torch.Generator):
        return generator.get_state() if put is None else generator.set_state(put)
    if isinstance(generator, np.random.Generator):
        if put is not None:
            generator.bit_generator.state = put
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state() if put is None else generator.set_state(put)
    return generator.getstate() if put is None else generator.setstate(put)
