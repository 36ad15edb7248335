"""``fedvra bench``: speed against a bare PyTorch loop or another checkout, and cost over the number of clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedvra.bench.against import Checkout

DEFAULT = ("w1", "w2", "w3")


@click.command(short_help="Time rounds beside a bare PyTorch loop.")
@click.argument("workloads", nargs=-1, metavar="[w1|...|w7|w3-cold|clients]...")
@click.option(
    "--against",
    default="bare",
    show_default=True,
    metavar="bare|CHECKOUT",
    help="What to race against: the bare loop, or the folder of another checkout of this project.",
)
@click.option("--algorithms", default="fedavg,fedvra", show_default=True, help="Some of fedavg, fedvra, scaffold.")
@click.option(
    "--passes", type=click.IntRange(min=1), default=7, show_default=True, help="How often the sides take turns."
)
@click.option(
    "--starts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Against a checkout: how often to do it all with new processes.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Rounds per turn [default: 3, cold ones 20]; for `clients` rounds in all [default: 12].",
)
@click.option("--workers", default="auto", show_default=True, help="Worker processes of the engine.")
@click.option("--precision", default="float32", show_default=True, help="float32 or bfloat16, for the engine only.")
@click.option(
    "--path", default="auto", show_default=True, help="How local steps are taken: auto, eager, traced, block."
)
@click.option("--clients", "counts", default="10000,1000000", show_default=True, help="For `clients`: the values of N.")
@click.option("--cohort", default=1000, show_default=True, help="For `clients`: how many take part in a round.")
@click.option("--one-step", is_flag=True, help="For `clients`: one step on 6 samples each, instead of w1's 24 on 600.")
@click.option(
    "--state-gb", default=1.0, show_default=True, help="For `clients`: GB of state kept in memory; the rest on disk."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(workloads: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Time whole rounds of fv.simulate beside a bare PyTorch loop, interleaved in one run, and print the median ratio.

    w1: MNIST MLP, 100 clients. w2: CIFAR-10 CNN. w3: 10,000 clients of 6 samples; w3-cold: nobody
    met before, beside a bare loop that keeps state. w4: residual CNN with BatchNorm. w5: LSTM.
    w6: CNN with GroupNorm. w7: MLP with dropout. clients: seconds and memory over N. Without names: w1 w2 w3.

    With --against CHECKOUT the present code and that checkout take turns, each in a process of its own.

    \b
    Example:
      fedvra bench w1 w3
      fedvra bench w3-cold --algorithms fedvra,scaffold
      fedvra bench w2 --passes 3 --rounds 1 --json
      fedvra bench w1 w4 w5 --against ../fedvra-before
      fedvra bench clients --clients 10000,1000000
    """
    from fedvra.bench.workloads import ALGORITHMS, WORKLOADS
    from fedvra.core.errors import UsageError, unknown_name

    names = workloads or DEFAULT
    for name in names:
        if name not in (*WORKLOADS, "clients"):
            raise unknown_name("workload", name, (*WORKLOADS, "clients"))
    options["algorithms"] = tuple(options["algorithms"].split(","))
    for algorithm in options["algorithms"]:
        if algorithm not in ALGORITHMS:
            raise unknown_name("algorithm to time", algorithm, ALGORITHMS)
    measure = _speed
    if options["against"] != "bare":
        from fedvra.bench.against import Checkout

        if "clients" in names:
            raise UsageError("clients has no opponent: leave --against out, or name workloads such as w1.")
        options["against"] = Checkout.at(options["against"])
        measure = _against
    reports = [
        report for name in names for report in (_clients if name == "clients" else measure)(name, options, as_json)
    ]
    if as_json:
        click.echo(json.dumps(reports, indent=1))


def _speed(name: str, options: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    from fedvra.bench.speed import measure
    from fedvra.bench.workloads import WORKLOADS
    from fedvra.engines.pool import resolve_workers

    workers = resolve_workers(_number(options["workers"]))
    report = measure(
        name,
        WORKLOADS[name],
        workers,
        passes=options["passes"],
        rounds=_rounds(name, options),
        algorithms=options["algorithms"],
        path=options["path"],
        precision=options["precision"],
    )
    if not quiet:
        click.echo(f"{name}: {report.title}  ({report.path} path, {workers} workers)")
        for contender, seconds in report.seconds.items():
            share = f"{report.fraction_of_limit[contender]:6.1%} of the matrix-multiply limit"
            click.echo(
                f"  {contender:8} {seconds:8.4f} s per round, {report.processor_seconds[contender]:8.4f} of processors"
                f"  {report.memory_mb[contender]:6.0f} MB  {share}"
            )
        for opponent, ratios in report.ratio.items():
            for contender, ratio in ratios.items():
                by_processor = report.processor_ratio[opponent][contender]
                click.echo(f"  {contender:8} {ratio:5.2f} x {opponent} ({by_processor:.2f} by processor time)")
        over = report.fedvra_over_fedavg
        click.echo(
            f"  {'' if over is None else f'fedvra costs {over:.2f} x fedavg; '}"
            f"first round after {report.startup_seconds:.1f} s"
        )
    return [report.to_json()]


def _against(name: str, options: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    from fedvra.bench.against import measure_against
    from fedvra.bench.workloads import WORKLOADS
    from fedvra.engines.pool import resolve_workers

    other: Checkout = options["against"]
    workers = resolve_workers(_number(options["workers"]))
    if not quiet:
        click.echo(f"{name}: {WORKLOADS[name].title}  ({workers} workers)")
    found = []
    for duel in measure_against(
        name,
        WORKLOADS[name],
        other,
        workers,
        passes=options["passes"],
        rounds=_rounds(name, options),
        starts=options["starts"],
        algorithms=options["algorithms"],
        path=options["path"],
        precision=options["precision"],
    ):
        report = duel.to_json()
        found.append(report)
        if not quiet:
            ours, theirs = (report["median_seconds"][side] for side in ("ours", "other"))
            low, high = duel.quartiles
            click.echo(
                f"  {duel.algorithm:8} {ours:8.4f} s per round, {duel.other} {theirs:.4f} s; "
                f"ratio {duel.ratio:.3f} (quartiles {low:.3f} to {high:.3f})"
            )
            click.echo(f"           {duel.verdict}")
    return found


def _clients(name: str, options: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    from dataclasses import replace

    from fedvra.bench.clients import measure_clients
    from fedvra.bench.workloads import WORKLOADS
    from fedvra.engines.pool import resolve_workers

    workload = replace(WORKLOADS["w3" if options["one_step"] else "w1"], cohort=options["cohort"])
    counts = [int(float(n)) for n in options["counts"].split(",")]
    rounds = options["rounds"] or 12
    memory = int(options["state_gb"] * 1e9)
    found = []
    for report in measure_clients(counts, workload, rounds, resolve_workers(_number(options["workers"])), memory, None):
        found.append(report.to_json())
        if not quiet:
            click.echo(
                f"N = {report.clients:9,}: {report.seconds_per_round:7.3f} s per round of {report.cohort} clients "
                f"({report.processor_seconds:.3f} with a core for each process), first round after "
                f"{report.startup_seconds:.1f} s, {report.memory_mb:.0f} MB, state {report.state_gb:.1f} GB "
                f"of {report.took_part:,} clients"
            )
    return found


def _rounds(name: str, options: dict[str, Any]) -> int:
    from fedvra.bench.workloads import WORKLOADS

    return options["rounds"] or (20 if WORKLOADS[name].cold else 3)


def _number(workers: str) -> int | str:
    return int(workers) if workers.isdigit() else workers
