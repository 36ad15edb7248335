"""``fedvra report``: one page, and perhaps figures for a paper, from runs on disk."""

from __future__ import annotations

import json

import click

from fedvra.cli._options import json_option


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
    help="Of the figures.",
)
@json_option
def command(folders: tuple[str, ...], out: str, figures: str | None, kind: str, as_json: bool) -> None:
    """Write one page about the runs in and below each DIR: a run's folder, a comparison's, one full of them.

    Curves with their spread over seeds (hover, zoom, logarithmic axes, over rounds, data sent or time), rounds and bytes to a
    target, time per round, who holds what, the configuration, and the table to copy as CSV or LaTeX. The page carries
    all it needs and opens without a network.

    \b
    Examples:
      fedvra report runs/compare-digits
      fedvra report runs/mnist-fedvra-seed0 runs/mnist-feddyn-seed0 --out mnist.html
      fedvra report runs/compare-digits --figures figures --format svg
    """
    from fedvra.show.figures import write_figures
    from fedvra.show.gather import gather
    from fedvra.show.page import write_page

    experiments = gather(folders)
    page = write_page(experiments, out)
    drawn = write_figures(experiments, figures, kind) if figures else []
    if as_json:
        click.echo(json.dumps({"report": str(page), "figures": list(map(str, drawn))}))
        return
    for what, path in [("Report", page), *(("Figure", figure) for figure in drawn)]:
        click.echo(f"{what}: {path}")
