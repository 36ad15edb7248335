"""``fedvra algorithms``: what there is, with its hyper-parameters."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from fedvra.cli._options import json_option


@click.command(short_help="List the algorithms and their hyper-parameters.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown, as docs/algorithms.md has it.")
@json_option
def command(markdown: bool, as_json: bool) -> None:
    """List the algorithms: name, hyper-parameters with their defaults, what they do, where they come from.

    \b
    Examples:
      fedvra algorithms
      fedvra algorithms --json
    """
    from fedvra.show.terminal import Column, make_console, table

    found = _algorithms()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if markdown:
        click.echo(as_markdown(found), nl=False)
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
    columns = [
        Column("name"),
        Column("label", drop=2),
        Column("parameters"),
        Column("what it does", wrap=24),
        Column("reference", wrap=24, drop=1),
    ]
    make_console().print(table(columns, rows))


def _algorithms() -> list[dict[str, Any]]:
    from fedvra.algorithms import REGISTRY
    from fedvra.runs.algorithm_text import settings_of, written

    return [
        {
            "name": name,
            "label": kind.label,
            "class": kind.__name__,
            "parameters": {key: written(key, value) for key, value in settings_of(kind()).items()},
            "description": readable((kind.__doc__ or "").strip().split("\n", 1)[0]),
            "suits": kind.suits,
            "everyone_takes_part": kind.everyone_takes_part,
            "converges_exactly": kind.converges_exactly,
            "published_vectors": {"up": kind.original.up, "down": kind.original.down},
            "reference": kind.reference,
        }
        for name, kind in REGISTRY.items()
    ]


def as_markdown(found: list[dict[str, Any]]) -> str:
    """The same as a table of Markdown, a line per algorithm."""
    from fedvra.show.terminal import markdown

    header = ["name", "Python", "hyper-parameters", "what it does", "every client", "exact", "up/down"]
    rows = [
        [
            f"`{each['name']}`",
            f"`fv.{each['class']}`",
            ", ".join(f"`{key}={value}`" for key, value in each["parameters"].items()) or "none",
            each["description"],
            "needed" if each["everyone_takes_part"] else "",
            "yes" if each["converges_exactly"] else "",
            f"{each['published_vectors']['up']}/{each['published_vectors']['down']}",
        ]
        for each in found
    ]
    return markdown(header, rows)


def readable(docstring: str) -> str:
    r"""A line of reStructuredText without its markup, Greek letters in words.

    >>> readable(r"Minimises :math:`\sum_i\omega_i f_i(x)`, see ``rule``.")
    'Minimises sum_i omega_i f_i(x), see rule.'
    """
    unmarked = re.sub(r":\w+:`|`|\\[^a-zA-Z]", "", docstring)
    words = re.sub(r"\\([a-zA-Z]+)", r" \1 ", unmarked)
    return re.sub(r" +(?=[_^ ,.)}]|$)", "", words)
