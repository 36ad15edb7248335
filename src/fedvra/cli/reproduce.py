"""``fedvra reproduce``: the paper's tables and figures, beside what it printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fedvra.cli._options import json_option


@click.command(short_help="The paper's tables and figures, beside its own numbers.")
@click.argument("recipe", metavar="NAME")
@click.option(
    "--seeds", metavar="N", help="Runs of each row, with seeds 0, 1, ... [default: the recipe's, as the paper]"
)
@click.option("--rounds", metavar="N", help="Rounds of each run. [default: the recipe's, as the paper]")
@click.option(
    "--quick",
    is_flag=True,
    help="A first look: few seeds and rounds. Written to NAME-quick.*, apart from full results.",
)
@click.option(
    "--only", metavar="LIST", help="Some rows: CASE, ROW or CASE/ROW, separated by commas; * and ? stand for more."
)
@click.option(
    "--runs", "look_in", metavar="DIR", multiple=True, help="Look for runs or results here too. May be repeated."
)
@click.option("--jobs", metavar="N", help="Runs at a time, one worker each. [default: one per core]")
@click.option(
    "--engine",
    default="local",
    show_default=True,
    metavar="NAME",
    help="Where runs are made: local, or on a cluster of ray.",
)
@click.option("--address", metavar="HOST:PORT", help="Of the Ray cluster; auto is the one this machine belongs to.")
@click.option("--no-run", is_flag=True, help="Run nothing: make tables and figures from the runs there are.")
@click.option(
    "--keep-checkpoints",
    is_flag=True,
    help="Keep checkpoints of finished runs too, so that they can be extended; large.",
)
@click.option("--out", metavar="DIR", default="runs/reproduce", show_default=True, help="Folder of results and runs.")
@click.option(
    "--page", metavar="FILE", help="Also put the table into a Markdown page, between <!-- NAME --> and <!-- /NAME -->."
)
@json_option
def command(
    recipe: str,
    seeds: str | None,
    rounds: str | None,
    quick: bool,
    only: str | None,
    look_in: tuple[str, ...],
    jobs: str | None,
    engine: str,
    address: str | None,
    no_run: bool,
    keep_checkpoints: bool,
    out: str,
    page: str | None,
    as_json: bool,
) -> None:
    """Reproduce a table or figure: table2, table3, fig2, fig3, fig4, readings, participation, all, or a FILE.yaml.

    Says how long it will take, runs what is missing, and prints the table with the paper's figure beside each mean and
    spread; * marks cells that differ by more than 15% in rounds or 0.5 points in accuracy. Runs are found again by their
    options, in DIR/runs and in the folders named with --runs: call it again after Ctrl-C to resume, ask for more seeds
    and only those are run. DIR receives NAME.json (the metrics of all runs), NAME.md and NAME.svg.

    \b
    Examples:
      fedvra reproduce table3 --quick
      fedvra reproduce table3 --out results
      fedvra reproduce table2 --engine ray --address auto --out /shared/results
      fedvra reproduce table2 --only noniid/fedvra --seeds 1 --rounds 200
      fedvra reproduce all --no-run --runs docs/results --out again
    """
    from fedvra.reproduce.recipe import load, names

    chosen = [load(name) for name in (names() if recipe == "all" else [recipe])]

    from fedvra.core.errors import require
    from fedvra.engines.pool import resolve_workers
    from fedvra.engines.ray_engine import Ray
    from fedvra.reproduce.driver import Request, reproduce, with_runs
    from fedvra.runs.files import finite
    from fedvra.runs.option_text import one_of, whole
    from fedvra.show.terminal import make_console

    cluster = Ray(address) if one_of("local", "ray")("engine", engine) == "ray" else None
    require(
        cluster is not None or address is None, "--address is that of a Ray cluster: say --engine ray, or leave it out."
    )
    request = Request(
        out=Path(out),
        seeds=None if seeds is None else whole(1)("seeds", seeds),
        rounds=None if rounds is None else whole(1)("rounds", rounds),
        quick=quick,
        only=[part.strip() for part in only.split(",")] if only else [],
        look_in=[Path(place) for place in look_in],
        jobs=resolve_workers("auto") if jobs is None else whole(1)("jobs", jobs),
        engine=cluster,
        run=not no_run,
        keep_checkpoints=keep_checkpoints,
        page=None if page is None else Path(page),
    )
    console = make_console(stderr=as_json)
    printed: list[dict[str, Any]] = []
    if recipe == "all" and no_run:
        chosen = [each for each in chosen if with_runs(each, request)]
    for each in chosen:
        result = reproduce(each, request, console)
        if as_json:
            printed.append(result.to_dict())
            continue
        console.print(f"\n{result.heading()}", style="bold", soft_wrap=True)
        for shown in (*result.table.rich(), *result.notes()):
            console.print(shown, soft_wrap=isinstance(shown, str))
    if as_json:
        click.echo(json.dumps(finite(printed if recipe == "all" else printed[0]), indent=2))
