"""``fedvra run``: one run into one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvra.cli._options import config_option, folder_for, json_option, layers, out_option, run_options

if TYPE_CHECKING:
    from rich.console import Console

    from fedvra.runs.files import RunSummary


@click.command(short_help="One algorithm on one task, into one folder.")
@click.argument("task", required=False)
@run_options()
@out_option("runs/TASK-ALGORITHM-seedN")
@config_option
@json_option
def command(task: str | None, out: str | None, config_file: str | None, as_json: bool, **options: Any) -> None:
    """Run one algorithm on a TASK: digits, mnist, fashion-mnist, cifar10, ..., or one of your own, path/to/mine.py:task.

    Defaults are those of the paper's MNIST experiment; a task may have its own. The folder receives config.yaml (every
    option as it came out, itself a valid --config), metrics.jsonl (a line per round), summary.json, partition.png,
    report.html and checkpoints to go on from with `fedvra resume` after Ctrl-C, which finishes the round first, or after
    a crash.

    \b
    Examples:
      fedvra run mnist --rounds 100 --set gamma=0.1 --set a=10 --out runs/mnist
      fedvra run mnist --algorithm scaffold --epochs 1-5 --split shards:2
      fedvra run --config runs/mnist/config.yaml --seed 1
      fedvra run path/to/mine.py:task --rounds 50
    """
    from fedvra.callbacks.display import make_view
    from fedvra.runs.config import configure
    from fedvra.show.display import make_console
    from fedvra.studies.execution import execute

    config = configure(*layers(task, config_file, options))
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
    """What a run came to and where it is; exit code 1 where it did not finish."""
    from fedvra.runs.files import finite

    if as_json:
        click.echo(json.dumps({**finite(summary.to_dict()), "folder": str(folder)}, indent=2))
    console.print(f"Written to {folder}", soft_wrap=True)
    if summary.status != "finished":
        raise click.exceptions.Exit(1)
