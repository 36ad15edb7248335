"""Options shared by verbs. Those of a run follow the fields of ``RunConfig``, which says all there is to say of them.

Nothing here imports torch: what a run refuses by its name alone is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fedvra.core.errors import UsageError, unknown_name
from fedvra.runs.config import configure, read_config
from fedvra.runs.options import GROUPS, OPTIONS

if TYPE_CHECKING:
    from fedvra.runs.options import RunConfig

F = TypeVar("F", bound=Callable[..., Any])
OUTPUT = ("out", "config_file", "as_json")
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names} | dict.fromkeys(OUTPUT, "Output")


class Named(click.Group):
    """Commands by name; one that is not there is refused with the nearest that is, as every other name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise unknown_name("command", args[0], known)
        return super().resolve_command(ctx, args)


class Grouped(click.Command):
    """A command whose help has its options under headings; with a task on the line, it shows that task's own defaults."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [each for each in args if not each.startswith("-")] if {"--help", "-h"} & set(args) else []
        known = _tasks() if words else []  # else nothing is imported for a page of help
        ctx.meta["task"] = next((each for each in words if each in known), None)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        task = ctx.meta.get("task")
        defaults: Mapping[str, Any] = {}
        if task:
            from fedvra.tasks import TASKS

            defaults = TASKS.get(task).defaults
        sections: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Options", *GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or not record[1]:
                continue
            name, text = parameter.name or "", record[1]
            if name in defaults:
                text = f"{text.partition(' [default: ')[0]} [default for {task}: {_shown(defaults[name])}]"
            sections[GROUP_OF.get(name, "Options")].append((record[0], text))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _completed(names: Callable[[], list[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    return complete


def _tasks() -> list[str]:
    from fedvra.tasks import TASKS

    return TASKS.names()


def _algorithms() -> list[str]:
    from fedvra.algorithms import REGISTRY

    return REGISTRY.names()


def _samplers() -> list[str]:
    from fedvra.samplers import SAMPLERS

    return SAMPLERS.names()


def _partitions() -> list[str]:
    from fedvra.data.partitions import PARTITIONS

    return PARTITIONS.names()


COMPLETED = {"algorithm": _algorithms, "sampler": _samplers, "split": _partitions}
"""What the shell offers after an option."""
task_argument = click.argument("task", required=False, shell_complete=_completed(_tasks))

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
config_option = click.option(
    "--config", "config_file", metavar="FILE", help="YAML file of these same options; the command line wins."
)


def out_option(default: str) -> Callable[[F], F]:
    return click.option("--out", metavar="DIR", help=f"Folder to write to, not in use yet. [default: {default}]")


def run_options(*left_out: str) -> Callable[[F], F]:
    """Every option of a run but the task and those left out. What is not given arrives as None: see :func:`given`."""

    def decorate(command: F) -> F:
        for name in reversed(
            [name for name in OPTIONS if name not in ("task", *left_out) and OPTIONS[name].metadata["typed"]]
        ):
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
                shell_complete=_completed(COMPLETED[name]) if name in COMPLETED else None,
            )(command)
        return command

    return decorate


def layers(task: str | None, config_file: str | None, options: dict[str, Any]) -> list[dict[str, Any]]:
    """What the config file says and what the command line says, for :func:`fedvra.runs.config.configure`."""
    said = {name: value for name, value in {"task": task, **options}.items() if value not in (None, ())}
    return [read_config(config_file) if config_file else {}, said]


def configured(*asked: dict[str, Any]) -> RunConfig:
    """What was asked for, refused at once where a name in it is not known: nothing heavy is imported for that."""
    from fedvra.data.partitions import parse_partition
    from fedvra.runs.config import require_options
    from fedvra.samplers import parse_sampler

    config = configure(*asked)
    require_options(config)
    parse_sampler(config.sampler, config.cohort)
    parse_partition(config.split)
    return config


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
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
