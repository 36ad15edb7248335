"""Tables on narrow and wide terminals: nothing is cut, columns go in a known order, the best stand out."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedvra.runs.summary import RunSummary
from fedvra.show.comparison import Row, columns, rows_table, winners
from fedvra.show.spreads import Reached, Spread
from fedvra.show.study import Study
from fedvra.show.terminal import Column, outcome, say, table

TARGETS = (80.0, 90.0, 95.0, 97.0)


def row(label: str, final: float, firsts: list[int | None], diverged: int = 0, std: float = 0.003) -> Row:
    spread = Spread(final, std, 3)
    reached = {f"{t:g}": Reached.of([first] * 3, [50] * 3) for t, first in zip(TARGETS, firsts, strict=True)}
    return Row(label, 3, diverged, spread, Spread(final + 0.004, std, 3), dict(reached), Spread(3.2, 0.1, 3))


DEMO = [
    row("FedVRA (gamma=0.1, a=10, d=10)", 0.9833, [5, 8, 13, 22]),
    row("FedAvg", 0.9508, [11, 20, 36, None]),
    row("FedProx", 0.9499, [11, 20, None, None]),
    row("SCAFFOLD", 0.9703, [9, 14, 25, 43]),
    row("FedDyn", 0.9740, [9, 12, 21, 31]),
]


def printed(what: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(what)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_names_and_numbers_are_never_cut(width: int) -> None:
    lines = printed(rows_table(DEMO, TARGETS), width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for each in DEMO:
        assert set(each.label.split()) <= set(words)
        assert f"{100 * each.final_accuracy.mean:.2f} ± 0.30" in " ".join(words)  # type: ignore[union-attr]
    whole = {cell for each in DEMO for cell in each.cells()[1:]}
    shown = {word for word in words if re.fullmatch(r">?\d[\d.]*", word)}
    assert shown <= {number for cell in whole for number in cell.split()}, "a number that is in no cell"


def test_columns_are_left_out_in_their_order() -> None:
    order = ["seconds", "best %", "rounds to 80%", "rounds to 90%", "rounds to 95%", "rounds to 97%"]
    for width in range(34, 140):
        text = " ".join(printed(rows_table(DEMO, TARGETS), width))
        said = re.search(r"Not shown, for lack of width: (.*)\.", text)
        gone = re.split(r", +", said[1].strip()) if said else []
        assert [re.sub(r"\s+", " ", name) for name in gone] == order[: len(gone)]
    assert not said
    assert len([column for column in columns(TARGETS) if column.drop]) == len(order)


def test_numbers_are_right_aligned() -> None:
    lines = printed(table([Column("name"), Column("n", number=True)], [["a", "5.0"], ["b", "12.5"]]), 40)
    assert [line.rstrip() for line in lines[-2:]] == ["a      5.0", "b     12.5"]


def test_prose_wraps_and_the_narrowest_terminals_stack() -> None:
    made = table([Column("name"), Column("what", wrap=20)], [["fashion-mnist", "pictures of clothes in ten classes"]])
    assert all(len(line) <= 40 for line in printed(made, 40))
    stacked = printed(made, 24)
    assert stacked[0] == "fashion-mnist"
    assert " ".join(" ".join(stacked).split()) == "fashion-mnist what pictures of clothes in ten classes"


def test_sentences_break_between_words_on_a_terminal_alone() -> None:
    text = "- the folder runs/with-a-rather-long-name is already in use: name another with --out"
    lines = []
    for force in (True, False):
        console = Console(file=io.StringIO(), width=40, force_terminal=force, color_system=None)
        say(console, text)
        lines.append(console.file.getvalue().splitlines())  # type: ignore[attr-defined]
    assert max(map(len, lines[0])) <= 40
    assert " ".join(line.strip() for line in lines[0]) == text
    assert lines[1] == [text]


# -- which are the best -------------------------------------------------------------------------------------------------


def test_what_did_not_arrive_is_above_its_last_round_and_never_best() -> None:
    some = Reached.of([10, 14, None], [50, 50, 50])
    assert some is not None
    assert (some.text(), some.spread, some.complete) == (">24.7 (2 of 3)", None, False)
    late = row("late", 0.9, [40] * 4)
    early = Row(
        "early, twice", 3, 0, late.final_accuracy, late.best_accuracy, dict.fromkeys(late.rounds_to, some), None
    )
    third = row("third", 0.9, [45] * 4)
    assert winners([late, early, third])[2] == {0}


def test_all_within_one_deviation_of_the_best_are_marked() -> None:
    rows = [row("A", 0.95, [5] * 4, std=0.01), row("B", 0.945, [5] * 4), row("C", 0.93, [9] * 4)]
    marked = winners(rows)
    assert marked[0] == {0, 1}
    assert marked[2] == {0, 1}, "among equal means not the first alone"
    assert marked[-1] == set(), "seconds depend on what else the machine did"


def test_a_diverged_run_never_wins() -> None:
    rows = [row("A", 0.99, [1] * 4, diverged=1), row("B", 0.95, [5] * 4), row("C", 0.93, [9] * 4)]
    assert all(0 not in each for each in winners(rows))


def test_the_best_are_bold() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    console.print(rows_table(DEMO, TARGETS))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1m98.33 ± 0.30\x1b[0m" in text
    assert "\x1b[1m97.40" not in text


def test_a_private_run_says_what_epsilon_came_to() -> None:
    done = RunSummary(
        "digits", "fedvra", "FedVRA", 0, "finished", None, 10, 0.61, 0.66, {}, 17.4, None, None, 0, 0, None
    )
    assert (
        outcome("FedVRA on digits", done) == "FedVRA on digits, seed 0: final 61.00%, best 66.00%; 10 rounds in 17.4 s"
    )
    assert outcome("FedVRA", replace(done, epsilon=2.7286)).endswith("; 10 rounds in 17.4 s; epsilon 2.73")


def test_an_empty_study_has_no_place() -> None:
    assert Study([]).place() == ""
    assert Study([]).rows(5) == []
