"""One self-contained page of any runs on disk: it opens without a network, on a phone, in light and in dark.

from fedvra.show.page import write_report

write_report(["runs/mnist"], "report.html")
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from fedvra.core.errors import UsageError
from fedvra.core.files import replace_durably
from fedvra.runs.files import finite
from fedvra.show.content import content, heading
from fedvra.show.gather import Experiment, gather

FILE = "report.html"
"""In a run's or comparison's folder."""
SCRIPTS = ("1-state.js", "2-chart.js", "3-bars.js", "4-tables.js", "5-main.js")


def write_report(places: Iterable[str | Path], out: str | Path) -> Path:
    """Write a page about the runs in and below some folders; returns its path."""
    return write_page(gather(places), out)


def write_page(experiments: Sequence[Experiment], out: str | Path, every: int | None = None) -> Path:
    """The same for runs that were gathered already; ``every``: the page loads itself again after so many seconds."""
    out = Path(out)
    text = report_page(experiments, out.absolute().parent)
    if every is not None:
        text = text.replace("<head>", f'<head>\n<meta http-equiv="refresh" content="{every}">', 1)
    page = text.encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(out, page)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): name another file with --out.") from None
    return out


def report_page(experiments: Sequence[Experiment], beside: Path) -> str:
    """The page as text; folders are named as seen from ``beside``, where it will lie."""
    assets = files("fedvra.show") / "assets"

    def read(*path: str) -> str:
        return assets.joinpath(*path).read_text(encoding="utf-8")

    said = json.dumps(finite(content(experiments, beside)), allow_nan=False, separators=(",", ":"))
    own = "\n".join(read("js", name) for name in SCRIPTS)
    parts = {
        "title": html.escape(f"{'; '.join(map(heading, experiments))} - fedvra report"),
        "style": f"{read('uplot', 'uPlot.min.css')}\n{read('page.css')}",
        "script": f'{read("uplot", "uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{own}}})();',
        "content": said.replace("<", "\\u003c"),  # so that no text of a run can end the element it is in
    }
    page = read("page.html")
    for name, text in parts.items():
        before, _, after = page.partition(f"{{{{{name}}}}}")
        page = f"{before}{text}{after}"
    return page
