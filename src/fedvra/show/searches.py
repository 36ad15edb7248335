"""Searches for the page of a report: what ``fedvra tune`` left in a folder, as plain values for a heat map or parallel axes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvra.core.goals import ACCURACY, Goal, smaller_is_better
from fedvra.runs.algorithm_text import label_of

FILE = "tuning.json"
"""What is tried, written before the first run, and what came of it."""


def searches(places: Iterable[str | Path], beside: Path) -> list[dict[str, Any]]:
    """Every finished search in some folders or right below them; folders are named as seen from ``beside``."""
    files = [file for place in places for pattern in (FILE, f"*/{FILE}") for file in sorted(Path(place).glob(pattern))]
    found = ((file.parent, json.loads(file.read_text(encoding="utf-8"))) for file in dict.fromkeys(files))
    return [_search(where, said["plan"], said["result"], beside) for where, said in found if said["result"]]


def _search(where: Path, plan: Mapping[str, Any], result: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    target = result.get("target", plan.get("target"))
    name = result["judged_by"]
    names = list(plan["over"])
    last = max(setting["rounds"] for setting in result["settings"])
    return {
        "title": f"{label_of(result['algorithm'])} on {result['task']}",
        "names": names,
        "values": {
            each: _in_order({_text(setting["given"][each]) for setting in result["settings"]}) for each in names
        },
        "judged": _words(name) if target is None else f"rounds to {Goal.read(target).words}",
        "percent": target is None and name.endswith("accuracy"),
        "least": target is not None or smaller_is_better(name),
        "options": result["options"],
        "edges": result["at_the_edge"],
        "settings": [  # the best first
            {
                "given": {each: _text(setting["given"][each]) for each in names},
                "figure": setting["judged"] if target is None else setting["rounds_to"],
                "rounds": setting["rounds"],
                "whole": setting["rounds"] == last and not setting["diverged"],
                "diverged": bool(setting["diverged"]),
                "folder": os.path.relpath(where / setting["folder"], beside),
            }
            for setting in result["settings"]
        ],
    }


def _words(name: str) -> str:
    return "test accuracy" if name == ACCURACY else name.replace("_", " ")


def _text(value: Any) -> str:
    """
    >>> _text("0.10"), _text(0.1), _text("1/p"), _text([1, 2])
    ('0.1', '0.1', '1/p', '[1, 2]')
    """
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def _in_order(texts: Iterable[str]) -> Sequence[str]:
    """Numbers by size, then words.

    >>> _in_order({"10", "auto", "9"})
    ['9', '10', 'auto']
    """

    def key(text: str) -> tuple[bool, float, str]:
        try:
            return (False, float(text), text)
        except ValueError:
            return (True, 0.0, text)

    return sorted(texts, key=key)
