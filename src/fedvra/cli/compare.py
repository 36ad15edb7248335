"""``fedvra compare``: several algorithms over several seeds."""

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

    from fedvra.show.comparison import Comparison

ALGORITHMS = "fedvra,fedavg,fedprox,scaffold,feddyn"


@click.command(cls=Grouped, short_help="Several algorithms, several seeds: mean, spread, curves.")
@task_argument
@click.option(
    "--algorithms",
    metavar="LIST",
    default=ALGORITHMS,
    help="Separated by commas; hyper-parameters after a colon, a name of your own after `as`: "
    "feddyn:alpha=0.1,fedvra:gamma=0.1,a=5 as strong. [default: those of `fedvra demo`]",
)
@click.option("--seeds", metavar="LIST", default="0", show_default=True, help="Seeds, e.g. 0,1,2 or 0-2.")
@run_options("algorithm", "set", "seed")
@out_option("runs/compare-TASK")
@config_option
@json_option
def command(
    task: str | None,
    algorithms: str,
    seeds: str,
    out: str | None,
    config_file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run several algorithms on a TASK, each with every seed; print means and spreads, draw the curves.

    All see the same data, cohorts and batches for a given seed. Each run has a folder of its own, as of `fedvra run`;
    beside them table.md, comparison.json, curves.png and report.html. A run that diverges is reported as such, and the
    others continue.

    \b
    Examples:
      fedvra compare digits --algorithms fedvra,fedavg --seeds 0-2
      fedvra compare mnist --algorithms fedvra,feddyn:alpha=0.1 --out runs/mnist
    """
    from fedvra.runs.variants import parse_variants

    asked = layers(task, config_file, options)
    chosen = configured(*asked).task
    variants, numbers = parse_variants(algorithms), parse_seeds(seeds)

    from fedvra.callbacks.display import make_view
    from fedvra.show.terminal import make_console
    from fedvra.studies.comparing import compare

    folder = folder_for(out, "compare", chosen)
    console = make_console(stderr=as_json)
    view = make_view(console, lines=0)
    comparison = compare(variants, *asked, seeds=numbers, out=folder, view=view)
    present(comparison, console, as_json)


def present(comparison: Comparison, console: Console, as_json: bool) -> None:
    """The table and where everything is; exit code 1 where no run finished."""
    from fedvra.runs.files import finite
    from fedvra.show.terminal import say

    if as_json:
        click.echo(json.dumps(finite(comparison.to_dict()), indent=2))
    else:
        console.print(comparison)
    for what, path in [
        ("Table:  ", comparison.table_file),
        ("Picture:", comparison.picture_file),
        ("Report: ", comparison.report_file),
    ]:
        if path.exists():
            say(console, f"{what} {path}")
    if not any(row.finished for row in comparison.rows()):
        raise click.exceptions.Exit(1)
