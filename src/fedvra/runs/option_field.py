"""What is to be known of an option of a run: its default, how it is read, its words in the help."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedvra.core.errors import require
from fedvra.runs import option_text


def option(
    default: Any,
    read: option_text.Reader,
    metavar: str,
    help: str,
    decides: bool = True,
    several: bool = False,
    typed: bool = True,
) -> Any:
    """A field with all that is to be known of it. No default of the dataclass's own: the task has a say in it.

    Args:
        decides: False where the numbers of a run do not depend on it: how, where and with what record it is carried out.
        several: it may be given more than once on a command line.
        typed: False where it is written down by a run and never asked for.
    """
    about = {"default": default, "read": read, "metavar": metavar, "help": help, "decides": decides, "several": several}
    return dataclasses.field(metadata={**about, "typed": typed})


def words(name: str, value: Any) -> tuple[str, ...]:
    """Words in a list."""
    require(isinstance(value, list | tuple), f"{name} must be a list of words, got {value!r}.")
    return tuple(map(str, value))
