"""A system from a file: YAML with the fields of ``fv.System``, and traces of devices as CSV beside it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedvra.clock.system import AMOUNTS, System
from fedvra.clock.windows import Windows
from fedvra.core.errors import UsageError, require, unknown_name

FIELDS = (*AMOUNTS, "jitter", "deadline", "available")


def read_system(path: str | Path) -> dict[str, Any]:
    """What the file says, with the traces it names put in: plain values that :func:`make_system` takes.

    ``trace: phones.csv`` names a table with one line per device and the columns step, up, down or latency. ``available`` holds
    period, and duty, or windows (per client a list of [start, stop]), or trace, a table of client, start and stop.
    """
    file = Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the system file {path} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the system file {path} is not YAML: {' '.join(str(error).split())}.") from None
    require(isinstance(content, dict), f"the system file {path} must hold lines such as `step: 0.1`.")
    trace = content.pop("trace", None)
    if trace is not None:
        lines = _table(file.parent / str(trace))
        given = [name for name in AMOUNTS if name in lines[0]]
        require(bool(given), f"{trace}: expected columns named {', '.join(AMOUNTS)}, got {', '.join(lines[0])}.")
        for name in given:
            content.setdefault(name, [_number(line[name], f"{trace}: {name}") for line in lines])
    available = content.get("available")
    if isinstance(available, dict) and "trace" in available:
        content["available"] = _windows(available, file.parent)
    make_system(content)
    return dict(content)


def make_system(content: Mapping[str, Any]) -> System:
    """The system that a mapping describes, checked.

    >>> make_system({"step": "2e-1", "deadline": 30, "available": {"period": 86400, "duty": 0.5}}).step
    0.2
    """
    for name in content:
        if name not in FIELDS:
            raise unknown_name("field of a system", str(name), FIELDS)
    given = {name: _plain(value) for name, value in content.items() if name != "available" and value is not None}
    for name in ("jitter", "deadline"):
        require(
            isinstance(given.get(name, 0.0), int | float), f"system: {name} must be a number, got {given.get(name)!r}."
        )
    available = content.get("available")
    if available is not None:
        require(
            isinstance(available, Mapping)
            and set(available) <= {"period", "duty", "windows"}
            and "period" in available,
            f"system: available holds period and either duty or windows, got {available!r}.",
        )
        try:
            given["available"] = Windows(_plain(available["period"]), available.get("duty"), available.get("windows"))
        except UsageError:
            raise
        except (TypeError, ValueError):
            raise UsageError("system: available: windows must hold per client a list of [start, stop].") from None
    return System(**given)


def _plain(value: Any) -> Any:
    """YAML takes 2e6 for text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _windows(available: dict[str, Any], folder: Path) -> dict[str, Any]:
    name = str(available["trace"])
    spans: dict[str, list[list[float]]] = {}
    for line in _table(folder / name):
        require({"client", "start", "stop"} <= set(line), f"{name}: expected the columns client, start and stop.")
        spans.setdefault(line["client"], []).append(
            [_number(line[each], f"{name}: {each}") for each in ("start", "stop")]
        )
    rest = {key: value for key, value in available.items() if key != "trace"}
    return {**rest, "windows": [spans[client] for client in sorted(spans, key=_in_order)]}


def _in_order(client: str) -> tuple[float, str]:
    return (float(client), "") if client.isdigit() else (math.inf, client)


def _table(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read ({error.strerror}).") from None
    require(bool(lines), f"the trace {path} has no lines.")
    return lines


def _number(text: str | None, where: str) -> float:
    try:
        return float(str(text))
    except ValueError:
        raise UsageError(f"{where} must be a number, got {text!r}.") from None
