"""A plain function of the record as a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.core.errors import UsageError
from fedvra.runs.files import Record


@dataclass(frozen=True)
class Function(Callback):
    """Calls a function with each round's record; it may ``raise fv.StopRun("why")``, and what it returns is ignored."""

    call: Callable[[Record], object]
    afterwards: ClassVar[bool] = True

    def on_round(self, run: Run, record: Record) -> None:
        self.call(record)


def as_callbacks(given: Iterable[Callback | Callable[[Record], object]]) -> list[Callback]:
    """Callbacks as they are, functions of a record as callbacks."""
    made: list[Callback] = []
    for each in given:
        if isinstance(each, Callback):
            made.append(each)
        elif callable(each) and not isinstance(each, type):
            made.append(Function(each))
        else:
            what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
            raise UsageError(
                f"a callback is an object such as fv.Patience(20) or a function of the record, got {what}."
            )
    return made
