"""A figure that a notebook shows. Imported when one is drawn: matplotlib takes longer to import than a small run takes."""

from __future__ import annotations

import io
from typing import final

from matplotlib.figure import Figure


@final
class Drawing(Figure):
    """A matplotlib figure that shows itself as SVG at the end of a cell.

    A plain ``Figure`` is text there unless pyplot has been imported with the inline backend. Figure alone draws with Agg and
    leaves pyplot's global state, and the caller's backend, untouched.

    >>> Drawing(figsize=(2, 1))._repr_svg_().startswith("<svg")
    True
    """

    def _repr_svg_(self) -> str:
        buffer = io.StringIO()
        self.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        return text[text.index("<svg") :]
