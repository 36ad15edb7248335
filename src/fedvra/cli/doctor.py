"""``fedvra doctor``: does a device compute what the CPU computes, and how fast?"""

from __future__ import annotations

import json
import sys
from typing import Any

import click


@click.command(short_help="Compare a device with the CPU, and time both.")
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    help="The device to examine: cuda, cuda:1, or cpu to try the command.",
)
@click.option(
    "--workloads", default="w1,w2,w3", show_default=True, metavar="LIST", help="What to time; empty times nothing."
)
@click.option(
    "--passes", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds of each that are timed."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(device: str, workloads: str, passes: int, as_json: bool) -> None:
    """Run a few rounds on a device and on the CPU, compare the models, and time both.

    Four networks and three algorithms are compared; then w1 to w3 of `fedvra bench` are timed. The exit code is 1 where the
    models differ by more than rounding, or where the device takes another path. Please report what it prints, all of it.

    \b
    Example:
      fedvra doctor --device cuda
      fedvra doctor --device cuda --workloads w1 --json
    """
    from fedvra.bench.doctor import TOLERANCE, examine
    from fedvra.bench.workloads import WORKLOADS
    from fedvra.core.errors import unknown_name

    names = tuple(name for name in workloads.split(",") if name)
    for name in names:
        if name not in WORKLOADS:
            raise unknown_name("workload", name, WORKLOADS)
    found: dict[str, list[dict[str, Any]]] = {"about": [], "comparison": [], "timing": []}
    for kind, finding in examine(device, names, passes):
        found[kind].append(finding)
        if not as_json:
            _show(kind, finding)
    bad = [each for each in found["comparison"] if not each["good"]]
    if as_json:
        click.echo(
            json.dumps({"about": found["about"][0], **{k: found[k] for k in ("comparison", "timing")}}, indent=1)
        )
    elif bad:
        click.echo(f"{len(bad)} of {len(found['comparison'])} differ from the CPU: please report the lines above.")
    else:
        click.echo(f"All {len(found['comparison'])} agree with the CPU within {TOLERANCE:g}.")
    sys.exit(1 if bad else 0)


def _show(kind: str, finding: dict[str, Any]) -> None:
    if kind == "about":
        click.echo(", ".join(f"{name} {value}" for name, value in finding.items()))
    elif kind == "comparison":
        here, there = finding["paths"]
        mark = "ok  " if finding["good"] else "BAD "
        path = there if here == there else f"{there}, on the CPU {here}"
        click.echo(f"{mark} {finding['network']} {finding['algorithm']:8} apart {finding['apart']:.1e}  ({path})")
    else:
        ratio = finding["cpu_seconds"] / finding["device_seconds"]
        click.echo(
            f"{finding['workload']}: {finding['device_seconds']:.4f} s per round, CPU {finding['cpu_seconds']:.4f} s "
            f"({ratio:.2f} x as fast as the CPU)"
        )
