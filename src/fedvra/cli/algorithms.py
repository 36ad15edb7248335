"""``fedvra algorithms``: what there is, with its hyper-parameters."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from fedvra.cli._options import json_option


@click.command(short_help="List the algorithms and their hyper-parameters.")
@json_option
def command(as_json: bool) -> None:
    """List the algorithms: name, hyper-parameters with their defaults, what they do, where they come from.

    \b
    Examples:
      fedvra algorithms
      fedvra algorithms --json
    """
    from fedvra.display import make_console, table

    found = _algorithms()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        [
            each["name"],
            each["label"],
            "\n".join(f"{name}={value}" for name, value in each["parameters"].items()) or "-",
            each["description"] + (" Needs every client in every round." if each["everyone_takes_part"] else ""),
            each["reference"],
        ]
        for each in found
    ]
    make_console().print(table(["name", "label", "parameters", "what it does", "reference"], rows, wrap=(3, 4)))


def _algorithms() -> list[dict[str, Any]]:
    from fedvra.algorithms import REGISTRY
    from fedvra.settings import settings_of, written

    return [
        {
            "name": name,
            "label": kind.label,
            "parameters": {key: written(key, value) for key, value in settings_of(kind()).items()},
            "description": readable((kind.__doc__ or "").strip().split("\n", 1)[0]),
            "everyone_takes_part": kind.everyone_takes_part,
            "reference": kind.reference,
        }
        for name, kind in REGISTRY.items()
    ]


def readable(docstring: str) -> str:
    r"""A line of reStructuredText without its markup, Greek letters in words.

    >>> readable(r"Minimises :math:`\sum_i\omega_i f_i(x)`, see ``rule``.")
    'Minimises sum_i omega_i f_i(x), see rule.'
    """
    unmarked = re.sub(r":\w+:`|`|\\[^a-zA-Z]", "", docstring)
    words = re.sub(r"\\([a-zA-Z]+)", r" \1 ", unmarked)
    return re.sub(r" +(?=[_^ ,.)}]|$)", "", words)
