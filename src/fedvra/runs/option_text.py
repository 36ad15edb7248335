"""Reading option values, as typed on a command line or written in a YAML file, into what a run needs.

A reader takes (name of the option, value) and gives the typed value or a :class:`UsageError` that says what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fedvra.core.errors import UsageError, require, unknown_name
from fedvra.core.goals import Goal, Target, in_order

Reader: TypeAlias = Callable[[str, Any], Any]


def text(name: str, value: Any) -> str:
    """Any non-empty text."""
    require(isinstance(value, str) and value.strip() != "", f"{name} must be a name, got {value!r}.")
    return str(value).strip()


def one_of(*known: str) -> Reader:
    """One of a few words."""

    def read(name: str, value: Any) -> str:
        if value not in known:
            raise unknown_name(f"value of {name}", str(value), known)
        return str(value)

    return read


def whole(least: int) -> Reader:
    """A whole number no smaller than ``least``.

    >>> whole(1)("rounds", "20")
    20
    """

    def read(name: str, value: Any) -> int:
        result = _as_whole(value)
        if result is None:
            raise UsageError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        require(result >= least, f"{name} must be at least {least}, got {result}.")
        return result

    return read


def truth(name: str, value: Any) -> bool:
    """True or false, also as words.

    >>> truth("drop_last", "true"), truth("drop_last", False)
    (True, False)
    """
    return bool(one_of("true", "false")(name, str(value).lower()) == "true")


def number(name: str, value: Any) -> float:
    """A finite number. YAML reads 1e-3 as text, so text is read as numbers wherever numbers are wanted."""
    try:
        result = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        result = math.nan
    require(math.isfinite(result), f"{name} must be a number, got {value!r}.")
    return result


def positive(name: str, value: Any) -> float:
    result = number(name, value)
    require(result > 0, f"{name} must be greater than 0, got {result:g}.")
    return result


def stepsize(name: str, value: Any) -> float | str:
    """A number, or one after another over the rounds.

    >>> stepsize("lr", "0.1"), stepsize("lr", "0.1: 0.01@200")
    (0.1, '0.1:0.01@200')
    """
    if not (isinstance(value, str) and "@" in value):
        return positive(name, value)
    from fedvra.policies import Stepwise

    written = re.sub(r"\s", "", value)
    require(min(Stepwise.parse(written).values) > 0, f"{name} must be greater than 0 in every round, got {value}.")
    return written


def factor(name: str, value: Any) -> float:
    result = number(name, value)
    require(0 < result <= 1, f"{name} must be a number in (0, 1], got {result:g}.")
    return result


def non_negative(name: str, value: Any) -> float:
    result = number(name, value)
    require(result >= 0, f"{name} must be at least 0, got {result:g}.")
    return result


def probability_of_loss(name: str, value: Any) -> float:
    result = number(name, value)
    require(0 <= result < 1, f"{name} must be a probability in [0, 1), got {result:g}.")
    return result


def optional(reader: Reader) -> Reader:
    """None stays None."""
    return lambda name, value: None if value is None else reader(name, value)


def or_word(word: str, reader: Reader, stands_for: Any = ...) -> Reader:
    """``word``, or what ``reader`` reads; the word may stand for a value of its own.

    >>> or_word("full", whole(1), stands_for=None)("batch_size", "full") is None
    True
    """
    meaning = word if stands_for is ... else stands_for

    def read(name: str, value: Any) -> Any:
        if value == word or value is meaning:
            return meaning
        try:
            return reader(name, value)
        except UsageError as error:
            raise UsageError(f"{str(error).removesuffix('.')}; or say {word!r}.") from None

    return read


def share(name: str, value: Any) -> float:
    """A share of something, from 0 to less than 1."""
    read = number(name, value)
    require(0 <= read < 1, f"{name} must be a share in [0, 1), such as 0.2, got {value!r}.")
    return read


def size(name: str, value: Any) -> int:
    """An amount of memory in bytes, perhaps with a unit.

    >>> size("state_memory", "4GB"), size("state_memory", "1.5 MiB")
    (4000000000, 1572864)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?\s*", str(value))
    if match is None or isinstance(value, bool):
        raise UsageError(f"{name} must be an amount of memory such as 4GB or 500MB, got {value!r}.")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


def normalization(name: str, value: Any) -> str:
    """dataset, sample, or MEAN/STD with numbers for all channels or, separated by commas, for each.

    >>> normalization("normalize", " 0.5/0.25 "), normalization("normalize", "sample")
    ('0.5/0.25', 'sample')
    """
    written = str(value).replace(" ", "")
    if written in ("dataset", "sample"):
        return written
    number = r"-?\d+(?:\.\d*)?|-?\.\d+"
    several = rf"(?:{number})(?:,(?:{number}))*"
    match = re.fullmatch(rf"({several})/({several})", written)
    require(
        match is not None,
        f"{name} must be 'dataset', 'sample' (each by its own mean and deviation) or MEAN/STD such as 0.5/0.25, got {value!r}.",
    )
    return written


def epochs(name: str, value: Any) -> int | str:
    """A number of epochs, or a range such as 1-5 to draw from per client and round."""
    from fedvra.samplers.work import parse_epochs

    written = str(value).strip()
    parse_epochs(written)
    return int(written) if written.isdigit() else written


def numbers(name: str, value: Any) -> tuple[float, ...]:
    """Numbers in a list, or separated by commas.

    >>> numbers("targets", "90,97.5"), numbers("targets", [90])
    ((90, 97.5), (90,))
    """
    parts = value.split(",") if isinstance(value, str) else value
    require(isinstance(parts, list | tuple), f"{name} must be numbers separated by commas, got {value!r}.")
    read = [number(name, part) for part in parts if part != ""]
    return tuple(int(each) if each.is_integer() else each for each in read)


def target(name: str, value: Any) -> Target:
    """An accuracy in per cent, or a figure of the records and its value.

    >>> target("until", "97"), target("until", "f1=0.80")
    (97, 'f1=0.8')
    """
    goal = Goal.read(value, name)
    if str(goal) != f"{goal.value:g}":
        return str(goal)
    return int(goal.value) if goal.value.is_integer() else goal.value


def targets(name: str, value: Any) -> tuple[Target, ...]:
    """Accuracies in per cent, ascending, then other figures.

    >>> targets("targets", "95,90,f1=0.8")
    (90, 95, 'f1=0.8')
    """
    parts = value.split(",") if isinstance(value, str) else value
    require(isinstance(parts, list | tuple), f"{name} must be a list such as 90,95,f1=0.8, got {value!r}.")
    return in_order(target(name, part) for part in parts if part != "")


def weights(name: str, value: Any) -> str | tuple[float, ...]:
    """omega_i: "equal", "samples", or one number per client."""
    if isinstance(value, str) and not re.match(r"\s*[-+.\d]", value):
        word: str = one_of("equal", "samples")(name, value)
        return word
    return numbers(name, value)


def assignments(name: str, value: Any) -> dict[str, Any]:
    """Hyper-parameters: a mapping, or a list of texts ``key=value``.

    >>> assignments("set", ["gamma=0.1", "d=1/p"])
    {'gamma': '0.1', 'd': '1/p'}
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    require(isinstance(value, list | tuple), f"{name} must map hyper-parameters to values, got {value!r}.")
    read = {}
    for part in value:
        key, equals, written = str(part).partition("=")
        require(bool(key.strip() and equals and written.strip()), f"{name} takes NAME=VALUE, got {part!r}.")
        read[key.strip()] = written.strip()
    return read


def trackers(name: str, value: Any) -> tuple[str, ...]:
    """Names of trackers in a list, or separated by commas.

    >>> trackers("track", "tensorboard,mlflow"), trackers("track", ["wandb"])
    (('tensorboard', 'mlflow'), ('wandb',))
    """
    from fedvra.runs.tracker_names import TRACKERS

    said = [value] if isinstance(value, str) else value
    require(
        isinstance(said, list | tuple) and all(isinstance(each, str) for each in said),
        f"{name} must be names of trackers such as tensorboard, got {value!r}.",
    )
    names = [part.strip() for each in said for part in each.split(",")]
    for each in names:
        TRACKERS.get(each)
    return tuple(dict.fromkeys(names))


def system(name: str, value: Any) -> dict[str, Any]:
    """A system of devices and networks: its fields, or the YAML file that holds them, whose content is kept in its place."""
    from fedvra.clock.reading import make_system, read_system

    if isinstance(value, str):
        return read_system(value)
    require(isinstance(value, Mapping), f"{name} must be a YAML file of step, up, down and so on, got {value!r}.")
    make_system(value)
    return dict(value)


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{each:g}" for each in values)


def _as_whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9]+\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
