"""Samplers as the command line writes them.

For example ``uniform``, ``bernoulli:0.1`` or ``availability:period=24,duty=0.5,inner=uniform``.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from fedvra.errors import UsageError, require, unknown_name
from fedvra.samplers.base import SAMPLERS, Sampler

COHORT_SIZE = "m"
"""The argument of a sampler that takes the size of the cohort, which has an option of its own (``--cohort``)."""


def parse_sampler(text: str, cohort_size: int) -> Sampler:
    """The sampler that ``text`` names, as ``name`` or ``name:value,key=value,...``.

    What may follow the name are the sampler's own arguments, by position or by keyword, read as their annotations say
    (number, true or false, another sampler); ``m`` is ``cohort_size``. So a new sampler needs no code here. A sampler as
    an argument can itself have one argument, as in ``inner=bernoulli:0.1``.

    >>> parse_sampler("uniform", cohort_size=10)
    Uniform(m=10)
    >>> parse_sampler("power-of-choice:20", cohort_size=10)
    PowerOfChoice(m=10, candidates=20, prior=1.0)
    """
    name, _, rest = text.strip().partition(":")
    make = SAMPLERS.get(name)
    parameters = inspect.signature(make, eval_str=True).parameters
    readers = {p.name: _reader(p.annotation, cohort_size) for p in parameters.values() if p.name != COHORT_SIZE}
    writable = [option for option, reader in readers.items() if reader is not None]

    arguments: dict[str, Any] = {COHORT_SIZE: cohort_size} if COHORT_SIZE in parameters else {}
    for position, part in enumerate(rest.split(",") if rest else []):
        option, equals, value = part.strip().partition("=")
        if not equals:
            require(
                position < len(writable),
                f"sampler {name!r} takes {_listed(writable)}, so there is no place for {part.strip()!r} in {text!r}"
                f"{' (the size of the cohort is --cohort)' if COHORT_SIZE in parameters else ''}.",
            )
            option, value = writable[position], option
        require(option != COHORT_SIZE, f"sampler {text!r}: set the size of the cohort with --cohort instead of m.")
        if option not in readers:
            raise unknown_name(f"option of the sampler {name!r}", option, writable)
        require(option not in arguments, f"sampler {text!r}: {option} is given twice.")
        reader = readers[option]
        if reader is None:
            raise _only_in_python(make, option)
        arguments[option] = reader(f"sampler {name!r}: {option}", value.strip())

    for parameter in parameters.values():
        if parameter.default is inspect.Parameter.empty and parameter.name not in arguments:
            if parameter.name not in writable:
                raise _only_in_python(make, parameter.name)
            raise UsageError(f"sampler {name!r} needs {parameter.name}: write {name}:{parameter.name}=VALUE.")
    return make(**arguments)


def _listed(options: list[str]) -> str:
    return f"only {', '.join(options)}" if options else "no values"


def _only_in_python(make: type[Sampler], option: str) -> UsageError:
    return UsageError(
        f"{option} of the sampler {make.__name__} cannot be written on the command line; "
        f"use {make.__name__}({option}=...) from Python."
    )


Reader = Callable[[str, str], Any]
"""(what is read, its text) -> value; the first is for the error message."""


def _reader(annotation: Any, cohort_size: int) -> Reader | None:
    """How to read a value of that type, or None if it has no form as text (tables, functions)."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    if Sampler in kinds:
        return lambda what, text: parse_sampler(text, cohort_size)
    if bool in kinds:
        return _read_flag
    if float in kinds:
        return lambda what, text: _read_number(float, "a number", what, text)
    if int in kinds:
        return lambda what, text: _read_number(int, "a whole number", what, text)
    return None


def _read_flag(what: str, text: str) -> bool:
    require(text in ("true", "false"), f"{what} must be true or false, got {text!r}.")
    return text == "true"


def _read_number(kind: Callable[[str], float], kind_is: str, what: str, text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{what} must be {kind_is}, got {text!r}.") from None
