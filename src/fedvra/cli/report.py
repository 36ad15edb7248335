"""``fedvra report``: one page, and perhaps figures for a paper, from runs on disk."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedvra.cli._options import json_option

if TYPE_CHECKING:
    from fedvra.show.gather import Experiment


@click.command(short_help="One self-contained page from any runs on disk.")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The page to write.")
@click.option("--figures", metavar="DIR", help="Also write figures in the style of a paper into this folder.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["pdf", "png", "svg"]),
    default="pdf",
    show_default=True,
    help="Format of the figures.",
)
@click.option(
    "--watch", is_flag=True, help="Rewrite the page while runs are in progress; it reloads itself in the browser."
)
@click.option("--every", type=click.IntRange(1), default=5, show_default=True, help="Seconds between two pages.")
@json_option
def command(
    folders: tuple[str, ...], out: str, figures: str | None, kind: str, watch: bool, every: int, as_json: bool
) -> None:
    """Write one page about the runs in and below each DIR: a run's folder, a comparison's, one full of them.

    Curves with their spread over seeds (hover, zoom, logarithmic axes, over rounds, data sent or time), rounds and bytes to a
    target, time per round, the partition, the configuration, and the table to copy as CSV or LaTeX. The page carries
    all it needs and opens without a network.

    \b
    Examples:
      fedvra report runs/compare-digits
      fedvra report runs/mnist-fedvra runs/mnist-feddyn --out mnist.html
      fedvra report runs/compare-digits --figures figures --format svg
      fedvra report runs/mnist-fedvra-seed0 --watch
    """
    from fedvra.core.files import require_folder

    for folder in folders:
        require_folder(Path(folder))

    from fedvra.show.figures import write_figures
    from fedvra.show.gather import gather
    from fedvra.show.page import write_page

    experiments = follow(folders, out, every) if watch else gather(folders)
    page = write_page(experiments, out, places=folders)
    drawn = write_figures(experiments, figures, kind) if figures else []
    if as_json:
        click.echo(json.dumps({"report": str(page), "figures": list(map(str, drawn))}))
        return
    for what, path in [("Report", page), *(("Figure", figure) for figure in drawn)]:
        click.echo(f"{what}: {path}")


def follow(folders: tuple[str, ...], out: str, every: int) -> list[Experiment]:
    """Write the page again and again until every run has ended; what there is then."""
    from fedvra.runs.cache import Cache
    from fedvra.show.gather import gather
    from fedvra.show.page import write_page

    told = None
    while not any(Cache(folders).every()) and in_progress(folders):
        if told is None:
            told = "no round is finished yet"
            click.echo(f"{out}: {told}", err=True)
        time.sleep(every)
    while True:
        experiments = gather(folders)
        going = [run for experiment in experiments for group in experiment.groups for run in group.runs]
        going = [run for run in going if run.status == "interrupted"]
        if not going:
            return experiments
        write_page(experiments, out, every, folders)
        said = "; ".join(f"{run.where}: round {run.rounds} of {run.config['rounds']}" for run in going)
        if said != told:
            click.echo(f"{out}: {said}", err=True)
            told = said
        time.sleep(every)


def in_progress(folders: tuple[str, ...]) -> bool:
    """Whether a run in or below them has begun and not ended."""
    from fedvra.runs.files import RunFolder

    begun = (RunFolder(file.parent) for folder in folders for file in Path(folder).rglob("config.yaml"))
    return any(not run.summary_file.exists() for run in begun)
