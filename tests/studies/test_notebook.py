"""In a notebook: displays that are drawn anew, objects that show themselves, forked workers that leave the kernel alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedvra as fv
from fedvra.callbacks.notebook import in_notebook
from notebooks import execute, nbformat

CELLS = [
    """
import numpy as np, torch, fedvra as fv
from fedvra.callbacks.notebook import in_notebook
assert in_notebook()
rng = np.random.default_rng(0)
inputs = rng.normal(size=(240, 4)).astype(np.float32)
labels = (inputs[:, 0] > 0).astype(int)
study = dict(
    problem=fv.Supervised(lambda: torch.nn.Linear(4, 2)),  # a lambda: workers are forked
    data=fv.split((inputs, labels), fv.IID(), clients=6, test=(inputs[:40], labels[:40])),
    sampler=fv.Uniform(3), work=fv.Epochs(1), lr=0.1, batch_size=10, rounds=3,
)
""",
    "history = fv.simulate(fv.FedVRA(), **study, workers=2)\nhistory",
    "history.plot()",
    "comparison = fv.compare([fv.FedVRA(), fv.FedAvg()], **study, seeds=range(2), at_once=2)\ncomparison",
    "fv.tune(fv.FedDyn(), {'alpha': [0.01, 0.1]}, **study)",
    "fv.simulate(fv.FedVRA(), **study, progress=False).metrics[-1]['round']",
]


def test_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    outputs = execute(notebook, tmp_path, monkeypatch)
    for of_cell in outputs:
        assert not [output for output in of_cell if output["output_type"] == "stream"], of_cell
    run, plot, compared, tuned, quiet = outputs[1:]
    progress, shown = run
    assert "FedVRA, seed 0: final" in progress["data"]["text/html"]  # what the bar has become
    assert "<table>" in shown["data"]["text/html"]
    assert "<svg" in shown["data"]["text/html"]
    assert plot[-1]["data"]["image/svg+xml"].startswith("<svg")
    assert "[4/4]" in compared[0]["data"]["text/html"]
    for study in (compared, tuned):
        assert "<table>" in study[-1]["data"]["text/html"]
        assert "<td><b>" in study[-1]["data"]["text/html"]  # the best
    assert [output["data"]["text/plain"] for output in quiet] == ["3"]


def test_elsewhere_there_is_no_notebook() -> None:
    assert not in_notebook()


def test_a_history_shows_itself() -> None:
    import torch

    costs = fv.Quadratic(torch.ones(3, 1, 1), torch.ones(3, 1))
    given = {"problem": costs, "sampler": fv.Full(), "work": fv.Steps(1), "workers": 1}
    history = fv.simulate(fv.FedAvg(), **given, rounds=3)
    assert "<svg" in history._repr_html_()  # of the training loss: there is no test
    assert len(history.plot("train_loss", "seconds").axes) == 2
    with pytest.raises(fv.UsageError, match="no record has a number 'f1' to plot"):
        history.plot("f1")
    assert "<table>" in fv.simulate(fv.FedAvg(), **given, rounds=0)._repr_html_()
