"""One self-contained page of any runs on disk: it opens without a network, on a phone, in light and in dark.

from fedvra.show.page import write_report

write_report(["runs/mnist"], "report.html")
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedvra.core.errors import UsageError
from fedvra.core.files import replace_durably
from fedvra.runs.files import finite
from fedvra.show.content import content, heading
from fedvra.show.gather import Experiment, gather
from fedvra.show.searches import searches

FILE = "report.html"
"""In a run's or comparison's folder."""
SCRIPTS = ("1-state.js", "2-chart.js", "3-bars.js", "4-tables.js", "5-search.js", "6-main.js")


def write_report(places: Iterable[str | Path], out: str | Path) -> Path:
    """Write a page about the runs in and below some folders; returns its path."""
    places = list(places)
    return write_page(gather(places), out, places=places)


def write_page(
    experiments: Sequence[Experiment],
    out: str | Path,
    every: int | None = None,
    places: Iterable[str | Path] = (),
) -> Path:
    """The same for runs that were gathered already.

    Args:
        every: the page loads itself again after so many seconds.
        places: folders whose searches are shown too.
    """
    out = Path(out)
    beside = out.absolute().parent
    text = report_page(experiments, beside, searches((Path(place).absolute() for place in places), beside))
    if every is not None:
        text = text.replace("<head>", f'<head>\n<meta http-equiv="refresh" content="{every}">', 1)
    page = text.encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(out, page)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): name another file with --out.") from None
    return out


def report_page(experiments: Sequence[Experiment], beside: Path, searched: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page as text; folders are named as seen from ``beside``, where it will lie."""
    assets = files("fedvra.show") / "assets"

    def read(*path: str) -> str:
        return assets.joinpath(*path).read_text(encoding="utf-8")

    said = json.dumps(finite(content(experiments, beside, searched)), allow_nan=False, separators=(",", ":"))
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
