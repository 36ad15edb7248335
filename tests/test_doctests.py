"""The examples in docstrings give what they say they give."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import fedvra

SOURCE = Path(fedvra.__file__).parent


@pytest.mark.parametrize("name", fedvra.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    """Of its own: that of a base class shows another thing."""
    thing = getattr(fedvra, name)
    said = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert doctest.DocTestParser().get_examples(said or ""), f"fv.{name} has no example in its docstring"


def modules_with_examples() -> list[str]:
    """Found in the text, so that nothing is imported before its own test."""
    with_examples = [path for path in sorted(SOURCE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]
    names = [".".join(["fedvra", *path.relative_to(SOURCE).with_suffix("").parts]) for path in with_examples]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
