"""``fedvra report``: one page, and perhaps figures for a paper, from runs on disk."""

from __future__ import annotations

import json

import click

from fedvra.cli._options import json_option


@click.command(short_help="One self-contained page from any runs on disk.")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The page to write.")
@json_option
def command(folders: tuple[str, ...], out: str, as_json: bool) -> None:
    """Write one page about the runs in and below each DIR: a run's folder, a comparison's, one full of them.

    Curves with their spread over seeds (hover, zoom, logarithmic axes, over rounds, data sent or time), rounds and bytes to a
    target, time per round, who holds what, the configuration, and the table to copy as CSV or LaTeX. The page carries
    all it needs and opens without a network.

    \b
    Examples:
      fedvra report runs/compare-digits
      fedvra report runs/mnist-fedvra-seed0 runs/mnist-feddyn-seed0 --out mnist.html
    """
    from fedvra.report.page import write_report

    page = write_report(folders, out)
    if as_json:
        click.echo(json.dumps({"report": str(page)}))
    else:
        click.echo(f"Report: {page}")
