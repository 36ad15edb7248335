"""Options shared by verbs. Those of a run follow the fields of ``RunConfig``, which says all there is to say of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fedvra.core.errors import UsageError
from fedvra.runs.config import read_config
from fedvra.runs.options import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
config_option = click.option(
    "--config", "config_file", metavar="FILE", help="YAML file of these same options; the command line wins."
)


def out_option(default: str) -> Callable[[F], F]:
    return click.option("--out", metavar="DIR", help=f"Folder to write to, not in use yet. [default: {default}]")


def run_options(*left_out: str) -> Callable[[F], F]:
    """Every option of a run but the task and those left out. What is not given arrives as None: see :func:`given`."""

    def decorate(command: F) -> F:
        for name in reversed([name for name in OPTIONS if name not in ("task", *left_out)]):
            about = OPTIONS[name].metadata
            several, flag = about["several"], isinstance(about["default"], bool)
            shown = "" if several or flag or about["default"] is None else f" [default: {_shown(about['default'])}]"
            words = name.replace("_", "-")
            command = click.option(
                f"--{words}/--no-{words}" if flag else f"--{words}",
                name,
                default=None,
                metavar=about["metavar"] or None,
                multiple=several,
                help=f"{about['help']}{' May be repeated.' if several else shown}",
            )(command)
        return command

    return decorate


def layers(task: str | None, config_file: str | None, options: dict[str, Any]) -> list[dict[str, Any]]:
    """What the config file says and what the command line says, for :func:`fedvra.runs.config.configure`."""
    said = {name: value for name, value in {"task": task, **options}.items() if value not in (None, ())}
    return [read_config(config_file) if config_file else {}, said]


def parse_seeds(text: str) -> list[int]:
    """
    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = (piece.strip() for piece in part.partition("-"))
        if not (low.isdigit() and (not dash or (high.isdigit() and int(high) >= int(low)))):
            raise UsageError(f"seeds must be whole numbers such as 0,1,2 or a range such as 0-2, got {text!r}.")
        seeds.extend(range(int(low), int(high if dash else low) + 1))
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"every seed is run once, but {text!r} names one twice.")
    return seeds


def folder_for(out: str | None, *name: str) -> Path:
    """The folder asked for, else the first free one of runs/NAME, runs/NAME-2, ..."""
    from fedvra.state.folders import next_free
    from fedvra.tasks.own import short_name

    return Path(out) if out else next_free(Path("runs") / "-".join(map(short_name, name)))


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
