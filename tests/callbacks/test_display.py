"""What people see: a live display on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fedvra.callbacks.base import Run
from fedvra.callbacks.display import LiveView, PlainView, Standing, View, make_view
from fedvra.runs.files import Record, RunSummary
from fedvra.show.terminal import clock, make_console, percent, table


def run(rounds: int) -> Run:
    return Run(rounds, title="FedVRA", targets=(50, 90))


def record(round: int, accuracy: float | None = 0.6, loss: float | None = 1.5) -> Record:
    return {
        "round": round,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "train_loss": 2.5,
        "seconds": 0.5,
        "cohort": [1, 2, 3],
    }


def summary(**changes: Any) -> RunSummary:
    figures: dict[str, Any] = {
        "task": "digits",
        "algorithm": "fedvra",
        "label": "FedVRA",
        "seed": 3,
        "status": "finished",
        "message": None,
        "rounds": 8,
        "final_accuracy": 0.875,
        "best_accuracy": 0.9,
        "rounds_to": {"50": 2, "90": None},
        "seconds": 4.0,
        "seconds_per_round": 0.5,
        "steps_per_second": 10.0,
        "bytes_up": 1,
        "bytes_down": 1,
        "peak_rss_mb": 100.0,
    }
    return RunSummary(**{**figures, **changes})


def show(view: View, rounds: int, end: RunSummary | None) -> None:
    shown = run(rounds)
    view.on_start(shown)
    for r in range(1, rounds + 1):
        view.on_round(shown, record(r, accuracy=r / rounds))
    finish(view, shown, end)


def finish(view: View, shown: Run, end: RunSummary | None) -> None:
    """None: cut short."""
    shown.summary = end or summary(status="interrupted")
    shown.status = shown.summary.status
    view.on_end(shown)


def plain(rounds: int, lines: int = 20, end: RunSummary | None = None) -> list[str]:
    stream = io.StringIO()
    show(PlainView(Console(file=stream, width=200), lines), rounds, end)
    return stream.getvalue().splitlines()


def terminal() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=True, width=120, color_system=None), stream


def test_standing_follows_the_records() -> None:
    standing = Standing("FedVRA", 10, (50, 90))
    standing.take(record(1, accuracy=0.4))
    standing.take(record(2, accuracy=0.92))
    standing.take(record(3, accuracy=0.7, loss=0.5))
    standing.take(record(4, accuracy=None, loss=None))
    assert (standing.round, standing.accuracy, standing.best, standing.loss) == (4, 0.7, 0.92, 2.5)
    assert {str(goal): r for goal, r in standing.reached.items()} == {"50": 2, "90": 2}
    assert (standing.clients_per_second(), standing.time_left()) == (6, 3)  # 3 clients in half a second, 6 rounds left


@pytest.mark.parametrize("rounds", [1, 7, 20, 21, 99, 1000])
def test_few_lines_whatever_the_number_of_rounds(rounds: int) -> None:
    lines = plain(rounds)
    assert len(lines) == rounds if rounds <= 20 else 10 <= len(lines) <= 21
    assert f"round {rounds}/{rounds}" in lines[-1]


def test_a_plain_line_says_all_there_is_to_say() -> None:
    last = plain(20)[-1]
    for part in ("accuracy 100.00%", "best 100.00%", "loss 1.5", "6 clients/s", "0:00 left", "50% at 10, 90% at 18"):
        assert part in last


def test_the_last_word_on_a_run() -> None:
    assert plain(5, lines=0, end=summary()) == [
        "FedVRA, seed 3: final 87.50%, best 90.00%, 50% at round 2; 8 rounds in 4.0 s"
    ]
    assert plain(5, lines=0, end=summary(status="diverged", message="it blew up.")) == ["FedVRA, seed 3: it blew up."]
    assert plain(5, lines=0) == []


def test_the_live_display_shows_progress_and_leaves_one_line() -> None:
    console, stream = terminal()
    view = LiveView(console)
    shown_run = run(10)
    view.on_start(shown_run)
    view.drawn = 0.0  # as if the last drawing were long ago
    view.on_round(shown_run, record(7, accuracy=0.91))
    shown = stream.getvalue()
    for part in ("FedVRA", "round 7/10", "accuracy 91.00%", "loss 1.5", "50% at round 7", "clients/s", "left"):
        assert part in shown
    finish(view, shown_run, summary())
    assert stream.getvalue().rstrip().endswith("8 rounds in 4.0 s")


def test_the_live_display_does_not_draw_too_often() -> None:
    console, stream = terminal()
    show(LiveView(console), 500, None)
    assert stream.getvalue().count("round") < 50


def test_the_live_display_can_be_cut_short() -> None:
    console, _ = terminal()
    view = LiveView(console)
    shown = run(10)
    view.on_start(shown)
    finish(view, shown, None)
    assert not view.live.is_started


def test_which_view_is_made() -> None:
    assert isinstance(make_view(terminal()[0]), LiveView)
    assert isinstance(make_view(Console(file=io.StringIO())), PlainView)


def test_lines_are_not_cut_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("x" * 150)
    assert capsys.readouterr().out == "x" * 150 + "\n"


def test_tables_take_text_literally() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(table(["a"], [["[red]x[/red]"]]))
    assert "[red]x[/red]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_formats() -> None:
    assert (percent(None), percent(0.12345)) == ("-", "12.35%")
    assert (clock(0.4), clock(59.6), clock(3599.7)) == ("0:00", "1:00", "1:00:00")
