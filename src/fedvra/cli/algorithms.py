"""``fedvra algorithms``: what there is, with its hyper-parameters."""

from __future__ import annotations

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
    import json

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
    import inspect

    from fedvra.algorithms import REGISTRY
    from fedvra.settings import settings_of, written

    return [
        {
            "name": name,
            "label": kind.label,
            "parameters": {key: written(key, value) for key, value in settings_of(kind()).items()},
            "description": inspect.cleandoc(kind.__doc__ or "").splitlines()[0],
            "everyone_takes_part": kind.everyone_takes_part,
            "reference": kind.reference,
        }
        for name, kind in REGISTRY.items()
    ]
