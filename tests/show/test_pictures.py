"""Pictures beside a table: their title is read in full, and in a notebook they are as wide as there is room."""

from __future__ import annotations

import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedvra.runs.inline import study_html
from fedvra.show.plots import Curve, curves_figure

TITLE = "digits: 50 clients, dirichlet:0.2, uniform cohort of 10, 50 rounds; accuracies are of the mean of the clients' models"


def curves(number: int) -> list[Curve]:
    return [Curve(f"line {k}", [1, 2], [0.5, 0.6], [0.4, 0.5], [0.6, 0.7]) for k in range(number)]


@pytest.mark.parametrize("number", [2, 8], ids=["few", "many"])
def test_a_long_title_stays_inside_the_figure(number: int) -> None:
    figure = curves_figure(curves(number), TITLE)
    (title,) = [text for text in figure.texts if text.get_text()]
    box = title.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    assert " ".join(title.get_text().split()) == TITLE
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_in_a_notebook_nothing_is_cut_and_no_number_is_broken() -> None:
    page = study_html(TITLE, ["algorithm", "final %"], [["FedVRA", "98.51 ± 0.32"]], curves_figure(curves(2), TITLE))
    (drawn,) = re.findall(r"<svg\b[^>]*>", page)
    assert " viewBox=" in drawn
    assert " width=" not in drawn
    assert "<td>98.51\u00a0±\u00a00.32</td>" in page
