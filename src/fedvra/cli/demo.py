"""``fedvra demo``: the library at work, on data that come with a dependency."""

from __future__ import annotations

import click

from fedvra.cli._options import folder_for, json_option, out_option, parse_seeds

ALGORITHMS = "fedvra,fedavg,fedprox,scaffold,feddyn"
OPTIONS = {"task": "digits", "clients": 50, "cohort": 10, "split": "dirichlet:0.2"}


@click.command(short_help="Five algorithms on handwritten digits, in under a minute.")
@click.option("--seeds", metavar="LIST", default="0-2", show_default=True, help="Seeds, e.g. 0,1,2 or 0-2.")
@out_option("runs/demo")
@json_option
def command(seeds: str, out: str | None, as_json: bool) -> None:
    """Compare FedVRA, FedAvg, FedProx, SCAFFOLD and FedDyn on handwritten digits, in under a minute.

    50 clients hold 28 digits each, of two to seven classes (Dirichlet 0.2); 10 of them take part in a round. The data
    come with scikit-learn, so nothing is downloaded. Every algorithm has its default hyper-parameters, for
    FedVRA those it chooses by itself; nothing was tuned for digits but the stepsize and the batch, which all share.

    \b
    Examples:
      fedvra demo
      fedvra demo --seeds 0 --out runs/demo-once
    """
    from fedvra.callbacks.display import make_view
    from fedvra.cli.compare import present
    from fedvra.show.terminal import make_console
    from fedvra.studies.comparing import compare

    console = make_console(stderr=as_json)
    view = make_view(console, lines=5)
    comparison = compare(ALGORITHMS, OPTIONS, seeds=parse_seeds(seeds), out=folder_for(out, "demo"), view=view)
    present(comparison, console, as_json)
