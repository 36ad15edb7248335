"""``fedvra bench``: speed against a bare PyTorch loop, and cost over the number of clients."""

from __future__ import annotations

import json
from typing import Any

import click

SPEED = ("w1", "w2", "w3")


@click.command()
@click.argument("workloads", nargs=-1, metavar="[w1|w2|w3|clients]...")
@click.option("--against", type=click.Choice(["bare"]), default="bare", show_default=True, help="What to race against.")
@click.option("--passes", default=7, show_default=True, help="How often the contenders take turns.")
@click.option("--rounds", type=int, help="Rounds per turn [default: 3]; for `clients` rounds in all [default: 12].")
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
    """Time the engine beside a bare PyTorch loop, interleaved in one run, and print the median ratio.

    w1: MNIST MLP, 100 clients. w2: CIFAR-10 CNN. w3: 10,000 clients of 6 samples. clients: seconds and memory over N.

    \b
    Example:
      fedvra bench w1 w3
      fedvra bench w2 --passes 3 --rounds 1 --json
      fedvra bench clients --clients 10000,1000000
    """
    from fedvra.errors import unknown_name

    names = workloads or SPEED
    for name in names:
        if name not in (*SPEED, "clients"):
            raise unknown_name("workload", name, (*SPEED, "clients"))
    reports = [
        report for name in names for report in (_clients if name == "clients" else _speed)(name, options, as_json)
    ]
    if as_json:
        click.echo(json.dumps(reports, indent=1))


def _speed(name: str, options: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    from fedvra.bench.speed import measure
    from fedvra.bench.workloads import WORKLOADS
    from fedvra.engines.local import resolve_workers
    from fedvra.problems.base import SolverSettings

    solver = SolverSettings(path=options["path"], precision=options["precision"])
    workers = resolve_workers(_number(options["workers"]))
    report = measure(name, WORKLOADS[name], workers, options["passes"], options["rounds"] or 3, solver)
    if not quiet:
        click.echo(f"{name}: {report.title}  ({report.path} path, {report.block} at once, {workers} workers)")
        for contender, seconds in report.seconds.items():
            ratio = f"{report.ratio[contender]:5.2f} x bare" if contender in report.ratio else " " * 12
            share = f"{report.fraction_of_limit[contender]:6.1%} of the matrix-multiply limit"
            rate = f"{report.client_steps / seconds:8.0f} client-steps/s"
            click.echo(f"  {contender:8} {seconds:8.4f} s per round  {ratio}  {rate}  {share}")
        click.echo(
            f"  fedvra costs {report.fedvra_over_fedavg:.2f} x fedavg; memory {report.memory_mb:.0f} MB; "
            f"first round after {report.startup_seconds:.1f} s"
        )
    return [report.to_json()]


def _clients(name: str, options: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    from dataclasses import replace

    from fedvra.bench.clients import measure_clients
    from fedvra.bench.workloads import WORKLOADS
    from fedvra.engines.local import resolve_workers

    workload = replace(WORKLOADS["w3" if options["one_step"] else "w1"], cohort=options["cohort"])
    counts = [int(float(n)) for n in options["counts"].split(",")]
    rounds = options["rounds"] or 12
    memory = int(options["state_gb"] * 1e9)
    found = []
    for report in measure_clients(counts, workload, rounds, resolve_workers(_number(options["workers"])), memory, None):
        found.append(report.to_json())
        if not quiet:
            click.echo(
                f"N = {report.clients:9,}: {report.seconds_per_round:7.3f} s per round of {report.cohort} clients, first round "
                f"after {report.startup_seconds:.1f} s, {report.memory_mb:.0f} MB, state {report.state_gb:.1f} GB "
                f"of {report.took_part:,} clients"
            )
    return found


def _number(workers: str) -> int | str:
    return int(workers) if workers.isdigit() else workers
