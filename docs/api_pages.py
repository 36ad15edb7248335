"""The reference of all ``fv.*`` names: one page per kind, written before the site is built."""

from __future__ import annotations

import inspect
from pathlib import Path

import fedvra

KINDS = {
    "algorithms": "Algorithms",
    "problems": "Problems",
    "data": "Data",
    "models": "Models",
    "samplers": "Sampling and local work",
    "policies": "Stepsizes and refusals",
    "local": "Local training",
    "engines": "The simulator",
    "callbacks": "Callbacks",
    "studies": "Running",
    "runs": "Results",
    "theory": "Theory",
    "tasks": "Tasks",
    "core": "Basics",
    "clock": "Simulated time",
    "compress": "Small messages",
    "state": "Models in files",
}


def pages() -> dict[str, list[str]]:
    """Every public name by the room it is from; rooms without a title of their own come last."""
    found: dict[str, list[str]] = {}
    for name in fedvra.__all__:
        home = fedvra._HOME_OF[name]
        found.setdefault(home.split(".")[1], []).append(name)
    order = [*KINDS, *sorted(set(found) - set(KINDS))]
    return {room: sorted(found[room]) for room in order if room in found}


def write_pages(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    made = pages()
    for room, names in made.items():
        title = KINDS.get(room, room.capitalize())
        parts = [f"# {title}\n"]
        for name in names:
            thing = getattr(fedvra, name)
            kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
            members = ":members:\n" if kind == "class" else ""
            parts.append(f"## fv.{name}\n\n```{{eval-rst}}\n.. auto{kind}:: fedvra.{name}\n{_indented(members)}```\n")
        write(folder / f"{room}.md", "\n".join(parts))
    contents = "\n".join(made)
    listed = "\n".join(
        f"- [{KINDS.get(room, room.capitalize())}]({room}.md): "
        + ", ".join(f"[`fv.{name}`]({room}.md#{_anchor(name)})" for name in names)
        for room, names in made.items()
    )
    write(
        folder / "index.md",
        f"# API reference\n\n`import fedvra as fv`\n\n{listed}\n\n```{{toctree}}\n:hidden:\n\n{contents}\n```\n",
    )


def _anchor(name: str) -> str:
    """Of the heading ``fv.name``, as GitHub and MyST make it."""
    return f"fv{name.lower()}"


def _indented(options: str) -> str:
    return "".join(f"   {line}\n" for line in options.splitlines())


def write(path: Path, text: str) -> None:
    """Only where it changed, so that Sphinx builds only that."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
