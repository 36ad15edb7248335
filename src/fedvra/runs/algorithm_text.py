"""Hyper-parameters as text: ``--set gamma=0.1`` and the ``set`` of a config file, to an algorithm and back."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvra.algorithms import REGISTRY, Algorithm
from fedvra.core.cohort import Setting
from fedvra.core.errors import UsageError, unknown_name
from fedvra.policies import POLICIES, Auto, Policy, Stepwise, parse_setting
from fedvra.runs import option_text


def make_algorithm(name: str, given: Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name with the hyper-parameters given, each read as its field's type asks.

    >>> make_algorithm("feddyn", {"alpha": "0.05"})
    FedDyn(alpha=0.05)
    """
    kind = REGISTRY.get(name)
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    for key in given:
        if key not in fields:
            if not fields:
                raise UsageError(f"{name} has no hyper-parameters, so there is no {key!r} to set.")
            raise unknown_name(f"hyper-parameter of {name} called", key, fields)
    return kind(**{key: _read(f"{key} of {name}", hints[key], value) for key, value in given.items()})


def kind_of(name: str) -> type[Algorithm] | None:
    """The algorithm that is registered under a name; None for one that its run alone knew."""
    return REGISTRY.get(name) if name in REGISTRY.names() else None


def label_of(name: str) -> str:
    """An algorithm in tables and plots.

    >>> label_of("fedvra"), label_of("My own")
    ('FedVRA', 'My own')
    """
    kind = kind_of(name)
    return name if kind is None else kind.label


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """All hyper-parameters with their values: what :func:`make_algorithm` would need to make it again.

    >>> from fedvra.algorithms.fedprox import FedProx
    >>> settings_of(FedProx(mu=0.3))
    {'mu': 0.3, 'averaging': 'cohort'}
    """
    return {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}


def written(name: str, value: Any) -> Any:
    """A hyper-parameter as a config file holds it: a number, a list, a word, or the name of a policy."""
    if isinstance(value, Stepwise | Auto) or (isinstance(value, Policy) and POLICIES.get(value.name) == value):
        return repr(value)
    if callable(value):
        raise UsageError(f"{name} is a function without a name, which a config file cannot hold; use Python.")
    return value.tolist() if isinstance(value, np.ndarray) else value


def _read(name: str, hint: Any, value: Any) -> Any:
    if hint == Setting:
        return _read_setting(name, value)
    if hint is float:
        return option_text.number(name, value)
    if hint is int:
        return option_text.whole(0)(name, value)
    if hint is bool:
        return option_text.truth(name, value)
    return value  # words: the algorithm itself knows which it takes


def _read_setting(name: str, value: Any) -> Setting:
    if callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, list | tuple | np.ndarray):
        try:
            np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise UsageError(f"{name}: a table must hold numbers, in rows of one length.") from None
        return value
    try:
        parsed = parse_setting(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return parsed if callable(parsed) else option_text.number(name, parsed)
