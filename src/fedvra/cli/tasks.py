"""``fedvra tasks``: what there is to learn, and the options each task brings."""

from __future__ import annotations

import json
from typing import Any

import click

from fedvra.cli._options import json_option


@click.command(short_help="List the tasks and their own defaults.")
@click.argument("names", metavar="[TASK]...", nargs=-1)
@json_option
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List the tasks: what each is, and the options it brings where they differ from the paper's MNIST experiment.

    With names, show those tasks alone. `fedvra run TASK --help` shows every option with the task's default.

    \b
    Examples:
      fedvra tasks
      fedvra tasks digits mnist-ssl
    """
    from fedvra.tasks.base import TASKS

    found = [_described(name) for name in names or TASKS.names()]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from fedvra.show.terminal import Column, make_console, table

    columns = [Column("name"), Column("what it is", wrap=24), Column("its own defaults", wrap=30)]
    rows = [[each["name"], each["description"], _line(each)] for each in found]
    make_console().print(table(columns, rows))


def _described(name: str) -> dict[str, Any]:
    from fedvra.tasks.base import TASKS

    task = TASKS.get(name)
    settings = {algorithm: dict(given) for algorithm, given in task.settings.items()}
    return {"name": name, "description": task.description, "defaults": dict(task.defaults), "set": settings}


def _line(task: dict[str, Any]) -> str:
    """Options by the names they have on the command line."""
    said = [f"{name.replace('_', '-')} {_shown(value)}" for name, value in task["defaults"].items()]
    for algorithm, given in task["set"].items():
        said.append(f"{algorithm} with " + " ".join(f"{name}={value}" for name, value in given.items()))
    return "; ".join(said) or "-"


def _shown(value: Any) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple | list) else str(value)
