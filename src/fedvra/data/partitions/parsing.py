"""Partitions as the command line writes them."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedvra.data.partitions.base import PARTITIONS, Partition
from fedvra.errors import UsageError, unknown_name


def parse_partition(text: str) -> Partition:
    """Read ``name``, ``name:value`` or ``name:field=value,field=value``; the fields are those of the dataclass, in order.

    >>> parse_partition("iid"), parse_partition("dirichlet:0.2")
    (IID(), Dirichlet(alpha=0.2))
    >>> parse_partition("quantity:power=1.5,min_size=3")
    QuantitySkew(alpha=None, power=1.5, min_size=3)
    """
    name, _, arguments = text.strip().partition(":")
    kind = PARTITIONS.get(name.strip().lower())
    fields: list[str] = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    given: dict[str, Any] = {}
    for position, argument in enumerate(filter(None, arguments.split(","))):
        key, equals, value = (piece.strip() for piece in argument.partition("="))
        if not equals:
            if position >= len(fields):
                raise UsageError(f"{text!r}: {name} takes {_listed(fields)}, and no further value.")
            key, value = fields[position], key
        if key not in fields:
            raise unknown_name(f"setting of {name}", key, fields)
        given[key] = _number(value, f"{text!r}: {key}")
    try:
        return kind(**given)
    except TypeError:
        example = f"{name}:{','.join(f'{field}=VALUE' for field in fields)}"
        raise UsageError(f"{text!r}: {name} needs {_listed(fields)}; write {example}.") from None


def _listed(fields: list[str]) -> str:
    return ", ".join(fields) if fields else "nothing after its name"


def _number(text: str, where: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise UsageError(f"{where} must be a number, got {text!r}.")
