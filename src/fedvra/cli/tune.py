"""``fedvra tune``: a search over hyper-parameters of one algorithm."""

from __future__ import annotations

import json
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
    parse_seeds,
    run_options,
    task_argument,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedvra.show.tuning import Tuning


@click.command(cls=Grouped, short_help="Search over an algorithm's hyper-parameters.")
@task_argument
@click.option(
    "--over",
    metavar="NAME=LIST",
    multiple=True,
    help="What to try: a hyper-parameter or an option of a run, and values separated by commas. May be repeated.",
)
@click.option("--seeds", metavar="LIST", default="0", show_default=True, help="Seeds, e.g. 0,1,2 or 0-2.")
@click.option(
    "--target",
    metavar="P",
    help="Rank by rounds to this accuracy (per cent) or figure (f1=0.8), not by accuracy at the end.",
)
@click.option("--by", "metric", metavar="NAME", help="Rank by this figure of the records, e.g. f1 or test_loss.")
@click.option(
    "--full",
    is_flag=True,
    help="Run every setting to the end; by default two thirds of them stop after a third of the rounds.",
)
@run_options("seed")
@out_option("runs/tune-TASK-ALGORITHM")
@config_option
@json_option
def command(
    task: str | None,
    over: tuple[str, ...],
    seeds: str,
    target: str | None,
    metric: str | None,
    full: bool,
    out: str | None,
    config_file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Try every combination of the values given, each with every seed, and say which is best.

    Settings are ranked by their mean accuracy over the last tenth of the rounds, or by the rounds to --target. With
    --validation 0.1 the choice is made on held-out data; without, on the test data, so the figures of the best setting are
    slightly optimistic.

    Each run has its own folder, as from `fedvra run`; beside them are table.md, tuning.json and report.html. `fedvra resume`
    continues the search after Ctrl-C or a crash.

    \b
    Examples:
      fedvra tune digits --algorithm feddyn --over alpha=0.01,0.1,1 --seeds 0-2
      fedvra tune mnist --over a=5,10,20 --over d=5,10,20 --target 95 --rounds 90
    """
    from fedvra.core.errors import require
    from fedvra.runs import option_text

    asked = layers(task, config_file, options)
    config = configured(*asked)
    tried = {name: value.split(",") for name, value in option_text.assignments("over", over).items()}
    require(len(tried) == len(over), "--over names something twice: write all its values in one, NAME=V1,V2.")
    numbers = parse_seeds(seeds)

    from fedvra.callbacks.display import make_view
    from fedvra.show.terminal import make_console
    from fedvra.studies.tuning import tune

    folder = folder_for(out, "tune", config.task, config.algorithm)
    console = make_console(stderr=as_json)
    view = make_view(console, lines=0)
    found = tune(tried, *asked, out=folder, seeds=numbers, target=target, metric=metric, full=full, view=view)
    present(found, console, as_json)


def present(found: Tuning, console: Console, as_json: bool) -> None:
    """The table and the best setting; exit code 1 where every one diverged."""
    from fedvra.runs.files import finite
    from fedvra.show.terminal import say

    if as_json:
        click.echo(json.dumps(finite(found.to_dict()), indent=2))
    else:
        console.print(found)
    say(console, f"Table:  {found.table_file}")
    if found.report_file.is_file():
        say(console, f"Report: {found.report_file}")
    if found.best.diverged == len(found.best.runs):
        say(console, "Every setting diverged: try smaller values, or a smaller --lr.")
        raise click.exceptions.Exit(1)
    say(console, f"Best:   {found.options(found.best)}")
    for edge in found.at_the_edge():
        say(console, f"        {edge}.")
