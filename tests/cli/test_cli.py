"""The command line: help, exit codes, JSON for programs, sentences for people."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from fedvra import __version__
from fedvra.algorithms import REGISTRY
from fedvra.cli import VERBS, demo, main
from fedvra.cli._options import parse_seeds
from fedvra.core.errors import UsageError
from fedvra.data.sources import SOURCES
from fedvra.runs.config import configure, read_config
from fedvra.runs.files import RunFolder
from fedvra.runs.options import GROUPS, OPTIONS
from fedvra.tasks import TASKS

SMALL = ["--clients", "20", "--cohort", "5", "--rounds", "2", "--workers", "1", "--model", "linear"]


def fedvra(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def ok(*args: str | Path) -> Result:
    result = fedvra(*args)
    assert result.exit_code == 0, result.output
    return result


# -- help ---------------------------------------------------------------------------------------------------------------


def every_command() -> list[list[str]]:
    paths = []
    for verb in VERBS:
        paths.append([verb])
        command = main.get_command(click.Context(main), verb)
        if isinstance(command, click.Group):
            paths += [[verb, name] for name in command.commands]
    return paths


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_verb_has_help_with_an_example(path: list[str]) -> None:
    shown = ok(*path, "--help").output
    assert "Example" in shown
    assert f"  fedvra {path[0]}" in shown.split("Example")[1]


def test_the_first_page_names_every_verb() -> None:
    assert ok("--help").output == ok().output == ok("-h").output
    for verb in VERBS:
        assert f"\n  {verb} " in ok().output


def test_version() -> None:
    assert ok("--version").output.strip().endswith(__version__)


def test_every_field_of_the_config_is_an_option_of_run() -> None:
    run = main.get_command(click.Context(main), "run")
    assert run is not None
    options = {parameter.name for parameter in run.params}
    written_by_runs = {name for name, field in OPTIONS.items() if not field.metadata["typed"]}
    assert written_by_runs == {"python", "fingerprint"}
    assert set(OPTIONS) - written_by_runs <= options
    assert not written_by_runs & options


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_help_fits_a_terminal(path: list[str], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = ok(*path, "--help").output.splitlines()
    assert [line for line in lines if len(line) > width] == []


HEAVY = ("torch", "numpy", "matplotlib", "sklearn", "rich")


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["compare", "--help"], ["data", "get", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys; from fedvra.cli import main\n"
        f"try: main({args!r})\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ["run", "digitz"],
        ["run", "digits", "--algorithm", "fedvrra"],
        ["run", "digits", "--sampler", "unifrm"],
        ["run", "digits", "--split", "dirichlett:0.1"],
        ["run", "digits", "--set", "gama=1"],
        ["compare", "digits", "--algorithms", "fedvra,fedavvg"],
        ["tune", "digits", "--algorithm", "feddin", "--over", "alpha=1"],
        ["check", "digitz"],
        ["reproduce", "tabel3"],
        ["data", "show", "digitz"],
        ["data", "shwo"],
        ["federation", "statsu"],
    ],
    ids=" ".join,
)
def test_unknown_names_are_refused_before_torch_is_imported(args: list[str]) -> None:
    assert "did you mean" in refused_without_torch(args)


@pytest.mark.parametrize(
    ("verb", "said"), [("resume", "there is no run in runs/nowhere"), ("report", "there is no folder runs/nowhere")]
)
def test_folders_that_are_not_there_are_refused_before_torch_is_imported(verb: str, said: str) -> None:
    assert said in refused_without_torch([verb, "runs/nowhere"])


def refused_without_torch(args: list[str]) -> str:
    """What is said in another process, where nothing is imported yet."""
    code = f"import sys; from fedvra.cli import main\ntry: main({args!r})\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (2, "False")
    return done.stderr


def test_options_are_under_headings_and_a_task_shows_its_own_defaults() -> None:
    plain, digits = ok("run", "--help").output, ok("run", "digits", "--help").output
    for heading in (*GROUPS, "Options"):
        assert f"\n{heading}:\n" in plain
    assert all(
        f"--{name.replace('_', '-')}" in plain for name in OPTIONS if name not in ("task", "python", "fingerprint")
    )
    assert {name for names in GROUPS.values() for name in names} < set(OPTIONS)
    assert "[default for digits: 0.05]" in " ".join(digits.split())
    assert "default for" not in plain


def test_tasks_are_listed() -> None:
    found = {each["name"]: each for each in json.loads(ok("tasks", "--json").output)}
    assert found["digits"]["defaults"]["lr"] == 0.05
    assert "mnist-ssl" in ok("tasks").output
    assert fedvra("tasks", "digitz").exit_code == 2


def test_the_shell_is_told_names() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(main, {}, "fedvra", "_FEDVRA_COMPLETE")

    def offered(*args: str) -> list[str]:
        return [item.value for item in complete.get_completions(list(args[:-1]), args[-1])]

    assert offered("run", "dig") == [name for name in TASKS.names() if name.startswith("dig")]
    assert offered("run", "digits", "--algorithm", "fedv") == ["fedvra", "fedvra-u"]
    assert "--sampler" in offered("run", "--s")


# -- run ----------------------------------------------------------------------------------------------------------------


def test_run_writes_its_folder_and_says_where(tmp_path: Path) -> None:
    result = ok("run", "digits", *SMALL, "--out", tmp_path / "run")
    assert f"Written to {tmp_path / 'run'}" in " ".join(result.stdout.split())
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in " ".join(result.stdout.split())
    assert "FedVRA on digits  round 2/2  accuracy" in result.stdout
    assert RunFolder(tmp_path / "run").summary().status == "finished"


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    result = ok("run", "digits", *SMALL, "--out", tmp_path / "run", "--json")
    summary = json.loads(result.stdout)
    assert summary.pop("folder") == str(tmp_path / "run")
    assert summary == RunFolder(tmp_path / "run").summary().to_dict()
    assert "round 2/2" in result.stderr


def test_the_default_folder_is_a_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("digits-fedavg-seed3", "digits-fedavg-seed3-2"):
        ok("run", "digits", *SMALL, "--algorithm", "fedavg", "--seed", "3")
        assert (tmp_path / "runs" / expected / "summary.json").exists()


def test_options_reach_the_run(tmp_path: Path) -> None:
    ok("run", "digits", *SMALL, "--set", "gamma=0.2", "--set", "a=3", "--batch-size", "7", "--out", tmp_path / "run")
    config = RunFolder(tmp_path / "run").config()
    assert (config.set["gamma"], config.set["a"], config.batch_size) == (0.2, 3, 7)


def test_a_last_batch_is_dropped_by_flag_or_by_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("task: digits\ndrop_last: true\n")
    file = ["--config", str(tmp_path / "c.yaml")]
    for k, (words, dropped) in enumerate(
        [(["--drop-last", "digits"], True), (file, True), ([*file, "--no-drop-last"], False)]
    ):
        ok("run", *words, *SMALL, "--out", tmp_path / str(k))
        assert RunFolder(tmp_path / str(k)).config().drop_last is dropped


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: digits\nrounds: 1\nseed: 5\nset: {a: 2}\nsplit: iid\n")
    ok("run", *SMALL, "--config", tmp_path / "config.yaml", "--seed", "6", "--out", tmp_path / "run")
    config = RunFolder(tmp_path / "run").config()
    assert (config.rounds, config.seed, config.set["a"], config.split) == (2, 6, 2, "iid")


def test_a_runs_config_is_a_config_file(tmp_path: Path) -> None:
    ok("run", "digits", *SMALL, "--set", "a=3", "--steps", "2", "--out", tmp_path / "first")
    ok("run", "--config", tmp_path / "first" / "config.yaml", "--out", tmp_path / "second")
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    assert first.config() == second.config() == configure(read_config(first.config_file))
    assert first.summary().final_accuracy == second.summary().final_accuracy


def test_a_run_that_diverges_exits_with_1(tmp_path: Path) -> None:
    wild = ["--rounds", "60", "--set", "gamma=0.1", "--set", "a=1000", "--model", "mlp"]
    result = fedvra("run", "digits", *SMALL, *wild, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"] == "diverged"
    assert "try a smaller a or d or lr" in result.stderr


# -- compare and demo ---------------------------------------------------------------------------------------------------


def test_compare_prints_a_table_and_says_where_things_are(tmp_path: Path) -> None:
    result = ok(
        "compare", "digits", *SMALL, "--algorithms", "fedvra:a=2,fedavg", "--seeds", "0-1", "--out", tmp_path / "c"
    )
    for part in ("FedVRA (a=2)", "FedAvg", "final %", "rounds to 90%", "±", "curves.png", "table.md"):
        assert part in result.stdout
    assert (tmp_path / "c" / "curves.png").exists()


def test_compare_for_programs(tmp_path: Path) -> None:
    result = ok("compare", "digits", *SMALL, "--algorithms", "fedvra,fedavg", "--out", tmp_path / "c", "--json")
    comparison = json.loads(result.stdout)
    assert [row["label"] for row in comparison["rows"]] == ["FedVRA", "FedAvg"]
    assert Path(comparison["picture"]).exists()


def test_compare_exits_with_1_only_where_nothing_finished(tmp_path: Path) -> None:
    wild = [*SMALL, "--rounds", "60", "--model", "mlp", "--eval-every", "10"]
    assert (
        fedvra("compare", "digits", *wild, "--algorithms", "fedvra:gamma=0.1,a=1000", "--out", tmp_path / "1").exit_code
        == 1
    )
    both = fedvra("compare", "digits", *wild, "--algorithms", "fedvra:gamma=0.1,a=1000,fedavg", "--out", tmp_path / "2")
    assert both.exit_code == 0
    assert "FedVRA (gamma=0.1, a=1000) [diverged]" in both.stdout


def test_compare_takes_the_config_of_a_run(tmp_path: Path) -> None:
    ok("run", "digits", *SMALL, "--set", "a=3", "--out", tmp_path / "run")
    stored = tmp_path / "run" / "config.yaml"
    ok("compare", "--config", stored, "--algorithms", "fedvra,fedavg", "--out", tmp_path / "c")
    assert RunFolder(tmp_path / "c" / "fedvra" / "seed-0").config().set["a"] == 3
    assert RunFolder(tmp_path / "c" / "fedavg" / "seed-0").config().set == {"averaging": "cohort"}


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "OPTIONS", {**demo.OPTIONS, "rounds": 3, "workers": 1})
    monkeypatch.chdir(tmp_path)
    shown = ok("demo", "--seeds", "0").stdout
    for label in ("FedVRA", "FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "runs/demo/table.md", "runs/demo/curves.png"):
        assert label in shown
    config = RunFolder(tmp_path / "runs" / "demo" / "fedvra" / "seed-0").config()
    assert (config.task, config.clients, config.cohort, config.split) == ("digits", 50, 10, "dirichlet:0.2")


def test_seeds() -> None:
    assert parse_seeds("0") == [0]
    assert parse_seeds("3,0-2") == [3, 0, 1, 2]
    for text in ("", "x", "1-", "2-1", "-1", "1,,2", "0,0"):
        with pytest.raises(UsageError):
            parse_seeds(text)


# -- algorithms and data ------------------------------------------------------------------------------------------------


def test_algorithms_lists_all_of_them() -> None:
    shown = ok("algorithms").stdout
    listed = json.loads(ok("algorithms", "--json").stdout)
    assert [each["name"] for each in listed] == REGISTRY.names()
    for each in listed:
        assert each["name"] in shown
        assert each["description"]
        assert not set("\\`") & set(each["description"])
        assert each["reference"]
    fedvra_ = next(each for each in listed if each["name"] == "fedvra")
    assert fedvra_["parameters"] == {"gamma": "auto", "a": "auto", "d": "auto"}


def test_data_list() -> None:
    shown = ok("data", "list").stdout
    listed = json.loads(ok("data", "list", "--json").stdout)
    assert [each["name"] for each in listed["data"]] == SOURCES.names()
    assert all(name in shown for name in SOURCES.names())
    assert next(each for each in listed["data"] if each["name"] == "digits")["stored"]


def test_data_get(tmp_path: Path) -> None:
    assert "nothing to fetch" in ok("data", "get", "digits", "--folder", tmp_path).stdout
    assert json.loads(ok("data", "get", "digits", "--folder", tmp_path, "--json").stdout)["name"] == "digits"


def test_data_show(tmp_path: Path) -> None:
    shown = ok("data", "show", "digits", "--clients", "50", "--out", tmp_path / "who.png").stdout
    assert "28 to 28" in shown
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads(ok("data", "show", "digits", "--clients", "7", "--split", "iid", "--json").stdout)
    assert figures["clients"] == 7
    assert figures["classes_per_client"].startswith("10 to 10")


# -- as a program -------------------------------------------------------------------------------------------------------

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "fedvra", "run", "digits", *SMALL, "--out", "run", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2
    again = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stdout == ""
    assert again.stderr == (
        "Error: the folder run is already in use: name another with --out, or continue what is in it with "
        "`fedvra resume run`.\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_leaves_a_readable_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedvra", "run", "digits", "--rounds", "100000", "--workers", "2", "--out", "run"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background inherit "ignore"
    ) as process:
        folder = RunFolder(tmp_path / "run")
        deadline = time.monotonic() + 60
        while not (folder.metrics_file.exists() and folder.metrics()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    rounds = len(folder.metrics())
    assert process.returncode == 1
    assert errors.split("\n")[1] == "Stopping when this round is over; once more stops at once."
    assert errors.strip().endswith(f"Error: interrupted after round {rounds}; resume with `fedvra resume run`.")
    assert folder.summary().status == "interrupted"
    assert folder.summary().rounds == rounds > 0


def test_a_reader_that_has_seen_enough() -> None:
    shown = subprocess.run(
        f"{sys.executable} -m fedvra algorithms | head -1",
        shell=True,
        env=ENV,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in shown.stderr


def test_every_option_of_a_run_has_a_heading() -> None:
    typed = {name for name, field in OPTIONS.items() if field.metadata["typed"]}
    headed = [name for names in GROUPS.values() for name in names]
    assert sorted(headed) == sorted(typed - {"task"})
