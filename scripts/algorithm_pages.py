"""Writes a page for every registered algorithm, docs/algorithms/NAME.md, from its class: a new algorithm gets its page.

    python scripts/algorithm_pages.py            # the pages alone
    python scripts/algorithm_pages.py --demo     # also run the demo with every algorithm and draw its curve (about a minute)

Equation, hyper-parameters and departures are the docstring's; the row of coefficients is that of docs/algorithms.md.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedvra.algorithms import REGISTRY, Algorithm
from fedvra.runs.algorithm_text import settings_of, written
from fedvra.show.terminal import markdown

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES, CURVES, FIGURES = DOCS / "algorithms", DOCS / "images" / "algorithms", DOCS / "algorithms" / "demo.json"
OPTIONS = {"task": "digits", "clients": 50, "cohort": 10, "split": "dirichlet:0.2"}
SEEDS = range(3)
BESIDE = ("fedavg", "fedvra")
"""What every curve is drawn beside."""


def shipped() -> dict[str, type[Algorithm]]:
    """The algorithms of this package, by name."""
    return {name: kind for name, kind in REGISTRY.items() if kind.__module__.startswith("fedvra.algorithms.")}


def page(kind: type[Algorithm], figures: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    parts = _parts(inspect.getdoc(kind) or "")
    full = " --sampler full" if kind.everyone_takes_part else ""
    row = _row(kind.label)
    shown = figures[kind.name]
    return (
        "\n\n".join(
            part
            for part in (
                f"<!-- written by scripts/algorithm_pages.py from the class: change {kind.__name__}'s docstring instead -->",
                f"# {kind.label}",
                parts["summary"],
                f"`fv.{kind.__name__}({', '.join(f'{k}={written(k, v)}' for k, v in settings_of(kind()).items())})` in Python, "
                f"`--algorithm {kind.name}` on the command line.",
                f"## When to use it\n\n{kind.suits}",
                f"{_facts(kind)}",
                f"## Update\n\n{parts['math']}",
                parts["prose"],
                f"Its row in the [table of coefficients](../algorithms.md#coefficients):\n\n{row}",
                f"## Hyper-parameters\n\n{parts['args'] or 'None.'}",
                f"## On the demo\n\n![Test accuracy of {kind.label} on digits](../images/algorithms/{kind.name}.svg)",
                f"Mean and standard deviation over three seeds, default hyper-parameters, beside {_beside(kind)}. The last "
                f"digits differ between machines. `fedvra compare digits --algorithms {kind.name} --seeds 0-2{full}`:",
                "All 50 clients take part in a round here, and 10 in those of FedVRA and FedAvg." if full else "",
                markdown(shown["header"], [shown["cells"]]).strip(),
                f"## Departures from the paper\n\n{parts['departures'] or 'None.'}",
                f"## Reference\n\n{kind.reference}.",
            )
            if part
        )
        + "\n"
    )


def _beside(kind: type[Algorithm]) -> str:
    return " and ".join(REGISTRY.get(name).label for name in BESIDE[::-1] if name != kind.name)


def _facts(kind: type[Algorithm]) -> str:
    facts = [
        "Every client has to take part in every round (`--sampler full`)." if kind.everyone_takes_part else "",
        "On smooth convex problems with exact gradients and small enough stepsizes x0 tends to the minimiser, however "
        "much the clients differ."
        if kind.converges_exactly
        else "Where clients differ, x0 tends to a point that depends on the local steps, not to the minimiser.",
        f"The published protocol sends {_vectors(kind.original.up)} up and {_vectors(kind.original.down)} down per client and "
        "round.",
    ]
    return "\n".join(f"- {fact}" for fact in facts if fact)


def _vectors(number: int) -> str:
    return "one vector" if number == 1 else f"{number} vectors"


def _row(label: str) -> str:
    table = (DOCS / "algorithms.md").read_text(encoding="utf-8").split("<!-- coefficients -->\n")[1].split("\n\n")[0]
    head, rule, *rows = table.splitlines()
    return "\n".join(
        [head, rule, *(row for row in rows if label in [each.strip() for each in row.split("|")[1].split(",")])]
    )


def _parts(text: str) -> dict[str, str]:
    """A docstring by what its parts are: summary, equation, hyper-parameters, departures, and the prose between."""
    found = {"summary": "", "math": "", "prose": "", "args": "", "departures": ""}
    blocks = re.split(r"\n\n(?=\S)", text)
    found["summary"] = _markdown(blocks[0])
    for block in blocks[1:]:
        if block.startswith(".. math::"):
            inner = " ".join(block.removeprefix(".. math::").split())
            found["math"] = f"$$\n\\begin{{aligned}}\n{inner}\n\\end{{aligned}}\n$$".replace(r"\\ ", "\\\\\n")
        elif block.startswith("Args:"):
            items = re.split(r"\n    (?=\w+:)", block.removeprefix("Args:"))
            found["args"] = "\n".join(
                f"- `{name}`: {_markdown(said)}" for name, said in (i.split(":", 1) for i in items[1:])
            )
        elif block.startswith("Departures"):
            said = _markdown(block.split(":", 1)[1])
            found["departures"] = said[0].upper() + said[1:]
        elif not block.startswith(">>>"):
            found["prose"] += ("\n\n" if found["prose"] else "") + _markdown(block)
    return found


def _markdown(text: str) -> str:
    """reStructuredText of a docstring as Markdown, on one line."""
    text = re.sub(r":math:`([^`]+)`", r"$\1$", " ".join(text.split()))
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", text)
    return text.replace("``", "`").replace("||", r"\|\|")


def run_demo() -> None:
    """Run the demo with every algorithm, draw each beside FedAvg and FedVRA, and note its row of the table."""
    from fedvra.show.curves import mean_curve
    from fedvra.show.plots import plot_curves, svg_figure, write_figure
    from fedvra.studies.comparing import compare

    CURVES.mkdir(exist_ok=True)
    figures, curves = {}, {}
    for name, kind in shipped().items():
        given = {**OPTIONS, **({"sampler": "full"} if kind.everyone_takes_part else {})}
        with tempfile.TemporaryDirectory() as folder:
            found = compare(name, given, seeds=list(SEEDS), out=Path(folder) / "runs")
        (row,) = found.rows()
        cells = row.cells()
        keep = [k for k, head in enumerate(found.header()) if head != "seconds"]
        figures[name] = {"header": [found.header()[k] for k in keep], "cells": [cells[k] for k in keep]}
        curves[name] = mean_curve(kind.label, [run.metrics for run in found.runs], algorithm=name)
        print(name, *cells, flush=True)
    for name in curves:
        with svg_figure(7.2, 3.8) as (figure, axes):
            shown = [curves[each] for each in dict.fromkeys([*BESIDE, name])]
            plot_curves(axes, [curve for curve in shown if curve is not None])
            write_figure(figure, CURVES / f"{name}.svg")
    with svg_figure(8.6, 4.4) as (figure, axes):
        names = ("fedavg", "fedprox", "scaffold", "feddyn", "fedvra")
        plot_curves(axes, [curve for name in names if (curve := curves[name]) is not None], targets=(80, 90, 95, 97))
        write_figure(figure, DOCS / "images" / "demo.svg")
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def write_pages() -> None:
    PAGES.mkdir(exist_ok=True)
    if "--demo" in sys.argv:
        run_demo()
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    for name, kind in shipped().items():
        (PAGES / f"{name}.md").write_text(page(kind, figures), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
