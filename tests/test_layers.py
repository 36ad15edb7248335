"""The rooms of the package: what each may import stands on its sign, and all arrows point one way."""

from __future__ import annotations

import ast
import importlib.util
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedvra

SOURCE = Path(fedvra.__file__).parent
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
MODULES = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")}


def sign(room: str) -> set[str]:
    """The rooms that a room's docstring says it may import."""
    text = " ".join((ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text("utf-8"))) or "").split())
    said = re.search(r"Imports (nothing of the library|[a-z, ]+)\.$", text)
    assert said is not None, f"the docstring of {room} does not end with what it may import."
    return set() if said[1].startswith("nothing") else set(said[1].split(", "))


def imported(path: Path) -> set[str]:
    """The rooms that a module imports from, lazily too; what only type checkers read aside."""
    tree = ast.parse(path.read_text("utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: list[str] = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute."
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {parts[1] for parts in (name.split(".") for name in names) if parts[0] == "fedvra" and len(parts) > 1}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_its_sign_says(room: str) -> None:
    found = set().union(*(imported(path) for path in MODULES if path.is_relative_to(SOURCE / room)))
    assert found & set(ROOMS) - {room} == sign(room)


def test_no_circle_between_rooms() -> None:
    order = list(TopologicalSorter({room: sign(room) for room in ROOMS}).static_order())
    assert order[0] == "core"


def test_every_room_is_named_for_newcomers_and_has_tests() -> None:
    root = SOURCE.parent.parent
    contributing = (root / "CONTRIBUTING.md").read_text("utf-8")
    for room in ROOMS:
        assert f"`{room}/`" in contributing, room
        assert list((root / "tests" / room).glob("test_*.py")), room


def test_few_modules_lie_loose_at_the_top() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_no_module_bears_the_name_of_a_public_object() -> None:
    """Importing ``fedvra.name`` would put the module where ``fv.name`` was."""
    assert not {path.name.removesuffix(".py") for path in SOURCE.iterdir()} & set(fedvra.__all__)


def test_files_are_short_or_say_why_not() -> None:
    for path, name in MODULES.items():
        text = path.read_text("utf-8")
        if len(text.splitlines()) > 300:
            docstring = ast.get_docstring(ast.parse(text)) or ""
            assert "Longer than" in docstring, f"{name} has {len(text.splitlines())} lines."


def test_the_picture_of_the_house_is_up_to_date() -> None:
    """After a change of rooms: ``python scripts/draw_house.py``."""
    scripts = SOURCE.parent.parent / "scripts" / "draw_house.py"
    spec = importlib.util.spec_from_file_location("draw_house", scripts)
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    for name, drawn in (("layers.svg", draw.layers()), ("round.svg", draw.way())):
        assert (draw.IMAGES / name).read_text("utf-8") == drawn


def test_private_names_of_torch_are_in_one_file() -> None:
    private = re.compile(r"\btorch(\.\w+)*\._[a-z]\w*|from torch(\.\w+)*\._\w+ import|import _\w+ as")
    for path, name in MODULES.items():
        if name != "core.torch_private":
            code = ast.unparse(ast.parse(path.read_text("utf-8")))
            assert private.search(code) is None, f"{name}: {private.search(code)}"
