"""Objects as the command line writes them: ``name``, ``name:value`` or ``name:value,key=value``.

What may follow the name are the object's own arguments, by position or by keyword, read as their annotations say. So a new
sampler, partition or rule needs no parser.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedvra.core.errors import UsageError, require, unknown_name

T = TypeVar("T")
Reader = Callable[[str, str], Any]
"""(what is read, its text) -> value; the first is for the error message."""


@dataclass(frozen=True)
class Language:
    """How objects of one kind are written."""

    kind: str
    """For error messages: "sampler"."""
    given: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Arguments that have an option of their own: value, and what that option is called."""
    nested: Mapping[type, Callable[[str], Any]] = field(default_factory=dict)
    """Arguments that are written as text themselves, by their type."""

    def make(self, text: str, get: Callable[[str], Callable[..., T]]) -> T:
        """The object that ``text`` stands for, where ``get`` knows what a name makes.

        >>> def power(base: float, exponent: int = 2) -> float:
        ...     return base**exponent
        >>> Language("function").make("power:1.5,exponent=3", {"power": power}.__getitem__)
        3.375
        """
        name, _, rest = (piece.strip() for piece in text.strip().partition(":"))
        maker = get(name)
        parameters = inspect.signature(maker, eval_str=True).parameters
        readers = {p.name: self._reader(p.annotation) for p in parameters.values() if p.name not in self.given}
        writable = [option for option, reader in readers.items() if reader is not None]
        arguments = {option: value for option, (value, _) in self.given.items() if option in parameters}
        for position, part in enumerate(filter(None, (piece.strip() for piece in rest.split(",")))):
            option, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                require(
                    position < len(writable),
                    f"{self.kind} {name!r} takes {_listed(writable)}, so there is no place for {part!r} in {text!r}"
                    f"{self._elsewhere(parameters)}.",
                )
                option, value = writable[position], option
            if option in self.given and option in parameters:
                raise UsageError(f"{self.kind} {text!r}: set {option} with {self.given[option][1]} instead.")
            if option not in readers:
                raise unknown_name(f"option of the {self.kind} {name!r}", option, writable)
            require(option not in arguments, f"{self.kind} {text!r}: {option} is given twice.")
            reader = readers[option]
            if reader is None:
                raise self._only_in_python(maker, option)
            arguments[option] = reader(f"{self.kind} {name!r}: {option}", value)
        for parameter in parameters.values():
            if parameter.default is inspect.Parameter.empty and parameter.name not in arguments:
                if parameter.name not in writable:
                    raise self._only_in_python(maker, parameter.name)
                raise UsageError(f"{self.kind} {name!r} needs {parameter.name}: write {name}:{parameter.name}=VALUE.")
        return maker(**arguments)

    def _elsewhere(self, parameters: Mapping[str, Any]) -> str:
        found = [f"{option} is {where}" for option, (_, where) in self.given.items() if option in parameters]
        return f" ({', '.join(found)})" if found else ""

    def _only_in_python(self, maker: Callable[..., Any], option: str) -> UsageError:
        made = getattr(maker, "__name__", "it")
        return UsageError(
            f"{option} of the {self.kind} {made} cannot be written on the command line; "
            f"use {made}({option}=...) from Python."
        )

    def _reader(self, annotation: Any) -> Reader | None:
        """How to read a value of that type, or None if it has no form as text (tables, functions)."""
        union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        kinds = typing.get_args(annotation) if union else (annotation,)
        for kind, parse in self.nested.items():
            if kind in kinds:
                return lambda what, text: parse(text)
        if bool in kinds:
            return _read_flag
        if float in kinds:
            return lambda what, text: _read_number(float, "a number", what, text)
        if int in kinds:
            return lambda what, text: _read_number(int, "a whole number", what, text)
        return (lambda what, text: text) if str in kinds else None


def _listed(options: list[str]) -> str:
    return f"only {', '.join(options)}" if options else "no values"


def _read_flag(what: str, text: str) -> bool:
    require(text in ("true", "false"), f"{what} must be true or false, got {text!r}.")
    return text == "true"


def _read_number(kind: Callable[[str], float], kind_is: str, what: str, text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{what} must be {kind_is}, got {text!r}.") from None


def split_calls(text: str) -> list[tuple[str, dict[str, str]]]:
    """Several, separated by commas, each with arguments by keyword.

    >>> split_calls("fedavg,fedvra:gamma=0.1,a=5,scaffold")
    [('fedavg', {}), ('fedvra', {'gamma': '0.1', 'a': '5'}), ('scaffold', {})]
    """
    calls: list[tuple[str, dict[str, str]]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, setting = (piece.strip() for piece in part.partition(":"))
        if not colon and "=" in part:  # a further argument of the one before it
            require(bool(calls), f"{part!r} belongs to nothing before it: write NAME:{part}.")
            colon, setting = ":", part
        else:
            calls.append((name, {}))
        if colon:
            key, _, value = (piece.strip() for piece in setting.partition("="))
            require(bool(key and value), f"{part!r}: write hyper-parameters as NAME:KEY=VALUE,KEY=VALUE.")
            calls[-1][1][key] = value
    return calls
