"""What objects show of themselves in a notebook: a small table and a curve, in one piece of HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def study_html(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    figure: Any = None,
    bold: Sequence[set[int]] = (),
) -> str:
    """A title, a table, and below it the figure, where there is something to draw; ``bold`` says by column which rows are.

    >>> study_html("digits", ["algorithm"], [["A<B"]]).count("A&lt;B")
    1
    """
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = [[_cell(cell, c < len(bold) and k in bold[c]) for c, cell in enumerate(row)] for k, row in enumerate(rows)]
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    table = f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    drawn = figure is not None and any(axes.lines for axes in figure.axes)
    return f"<div><b>{html.escape(title)}</b></div>{table}{svg(figure) if drawn else ''}"


def _cell(text: str, bold: bool) -> str:
    """Numbers stay on one line."""
    whole = text.replace(" ", "\u00a0") if "±" in text or text.startswith(">") else text
    return f"<td><b>{html.escape(whole)}</b></td>" if bold else f"<td>{html.escape(whole)}</td>"


def svg(figure: Any) -> str:
    """A drawing to stand in a page, as wide as there is room: its own size in points would be cut off."""
    drawn = re.sub(r'(<svg\b[^>]*?) width="[^"]*" height="[^"]*"', r"\1", figure._repr_svg_(), count=1)
    return f'<div style="max-width:42em">{drawn}</div>'


def history_figure(curves: Mapping[str, Sequence[tuple[int, float]]], title: str = "") -> Any:
    """Figures of one run over its rounds, one below the other."""
    from fedvra.runs.drawing import Drawing

    drawn = {name: points for name, points in curves.items() if points}
    figure = Drawing(figsize=(6.4, 2.2 * max(1, len(drawn))), layout="constrained")
    for k, (name, points) in enumerate(drawn.items()):
        axes = figure.add_subplot(len(drawn), 1, k + 1)
        axes.plot(*zip(*points, strict=True), color="#0072B2", marker="o" if len(points) == 1 else None)
        axes.set_ylabel(name.replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
        axes.set_xlabel("round" if k == len(drawn) - 1 else "")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure
