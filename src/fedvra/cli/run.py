"""``fedvra run``: one run into one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvra.cli._options import (
    Grouped,
    config_option,
    configured,
    folder_for,
    json_option,
    layers,
    out_option,
    run_options,
    task_argument,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedvra.runs.files import RunSummary


@click.command(cls=Grouped, short_help="One algorithm on one task, into one folder.")
@task_argument
@run_options()
@out_option("runs/TASK-ALGORITHM-seedN")
@config_option
@json_option
def command(task: str | None, out: str | None, config_file: str | None, as_json: bool, **options: Any) -> None:
    """Run one algorithm on a TASK: one of those that `fedvra tasks` lists, or one of your own, path/to/mine.py:task.

    Defaults are those of the paper's MNIST experiment; a task may have its own, which `fedvra run TASK --help` shows. The
    folder receives config.yaml (every option as resolved, itself a valid --config), metrics.jsonl (a line per round),
    summary.json, partition.png, report.html and checkpoints. `fedvra resume` continues the run after Ctrl-C, which lets
    the round finish first, or after a crash.

    \b
    Examples:
      fedvra run mnist --rounds 100 --set gamma=0.1 --set a=10 --out runs/mnist
      fedvra run mnist --algorithm scaffold --epochs 1-5 --split shards:2
      fedvra run --config runs/mnist/config.yaml --seed 1
      fedvra run path/to/mine.py:task --rounds 50
    """
    config = configured(*layers(task, config_file, options))

    from fedvra.callbacks.display import make_view
    from fedvra.show.terminal import make_console
    from fedvra.studies.execution import execute

    folder = folder_for(out, config.task, config.algorithm, f"seed{config.seed}")
    console = make_console(stderr=as_json)
    summary = execute(config, folder, [make_view(console)])
    report(summary, folder)
    present(summary, folder, console, as_json)


def report(summary: RunSummary, folder: Path) -> None:
    """A page about the run into its folder, where there is something to say."""
    from fedvra.show.page import FILE, write_report

    if summary.rounds or summary.status == "diverged":
        write_report([folder], folder / FILE)


def present(summary: RunSummary, folder: Path, console: Console, as_json: bool) -> None:
    """The result of a run and where it is; exit code 1 where it did not finish."""
    from fedvra.runs.files import finite
    from fedvra.show.page import FILE
    from fedvra.show.terminal import say

    if as_json:
        click.echo(json.dumps({**finite(summary.to_dict()), "folder": str(folder)}, indent=2))
    say(console, f"Written to {folder}")
    if (folder / FILE).exists():
        say(console, f"Report: {folder / FILE}")
    if summary.status != "finished":
        raise click.exceptions.Exit(1)
