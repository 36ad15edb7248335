"""The studies of auto and of the model to deploy are the code's: tables are those of the kept runs, which can be made again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedvra as fv
from benchmark_scripts import benchmark

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adaptive-study.md").read_text(encoding="utf-8").splitlines()


def test_tables_of_the_page_are_those_of_the_runs() -> None:
    for table in (*benchmark("adaptive_tables").TABLES, benchmark("adaptive_u").table):
        lines = [line for line in table() if line]
        start = PAGE.index(lines[0])
        assert PAGE[start : start + len(lines)] == lines, (
            f"docs/adaptive-study.md: put the output of {table.__name__} there"
        )
        assert not PAGE[start + len(lines)].startswith("|")


def test_tables_are_put_where_older_ones_were() -> None:
    page = "\n".join(PAGE) + "\n"
    head = PAGE.index("| to be reached | reached |")
    older = "\n".join([*PAGE[: head + 2], "| something | else |", *PAGE[head + 4 :]]) + "\n"
    assert benchmark("adaptive_tables").with_tables(older) == page


def test_rows_about_the_model_to_deploy_are_those_of_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The page leaves out some factors, and the column that names the task."""
    benchmark("deploy").table()
    made = {line for line in capsys.readouterr().out.splitlines() if line.startswith("|")}
    made |= {"| " + line.split(" | ", 1)[1] for line in made}
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8").split("\n## ")[1]
    rows = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| algorithm", "| ---"))
    ]
    assert len(rows) == 4 * 5 * 4  # tasks, algorithms, models
    assert [line for line in rows if line not in made] == []


@pytest.mark.parametrize("name", ["quadratics, mild", "quadratics, stiff"])
def test_a_kept_run_of_auto_can_be_made_again(name: str) -> None:
    """In float64 with exact gradients, so another machine has the same run. Who changes the rule has to repeat the study."""
    study = benchmark("adaptive")
    (trial,) = (t for t in benchmark("adaptive_lists").DESIGN if t.name == name)
    kept = study.Results("design").runs[f"{name} | auto | 100"]
    again = study.quadratic(trial, 100, fv.FedVRA())
    np.testing.assert_allclose(again["mean"], kept["mean"], atol=1e-3)
    np.testing.assert_allclose(again["sigma"], kept["sigma"], atol=2e-3)


def test_what_judges_the_rule_has_no_part_in_its_design() -> None:
    """Neither a task nor a seed is on both lists."""
    lists = benchmark("adaptive_lists")
    design, held_out = ([(t.name, t.options, t.seeds) for t in some] for some in (lists.DESIGN, lists.HELD_OUT))
    assert len({name for name, *_ in design + held_out}) == len(design) + len(held_out)
    assert not [options for _, options, _ in design if options in [other for _, other, _ in held_out]]
    assert not {s for *_, seeds in design for s in seeds} & {s for *_, seeds in held_out for s in seeds}
