"""Draws docs/images/layers.svg from the rooms' own signs, and docs/images/round.svg, a round's way through them.

python scripts/draw_house.py
"""

from __future__ import annotations

import ast
import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, IMAGES = ROOT / "src" / "fedvra", ROOT / "docs" / "images"
INK, QUIET, PAPER = "#1f2933", "#52606d", "#ffffff"
SHADES = ("#dbeafe", "#e0f2fe", "#d1fae5", "#ecfccb", "#fef3c7", "#ffedd5", "#fee2e2", "#fce7f3", "#ede9fe", "#e0e7ff")

ROUND = (
    ("samplers/", "who takes part, with which p_i, and how many steps Q_i", "server"),
    ("algorithms/, policies/", "the round's coefficients gamma, alpha, w, s, kappa", "server"),
    ("engines/", "x0 and lam are broadcast; the cohort is cut into parts", "server"),
    ("state/", "each client's lam_i (and y_i, anchor) as committed last", "clients"),
    ("core/step.py: client_round", "correction h_i, local steps, new lam_i, upload D_i (steps 9-15)", "clients"),
    ("local/, problems/", "the local steps themselves: batches, gradients, optimiser", "clients"),
    ("state/", "the new rows are staged, not yet in force", "clients"),
    ("core/step.py: server_round", "lam, then x0, from the uploads that count (steps 19, 20)", "server"),
    ("state/", "commit those whose reply counted, forget the others", "server"),
    ("callbacks/, runs/", "evaluate, record, checkpoint, track, stop early", "server"),
)


def signs() -> dict[str, tuple[str, set[str]]]:
    """Each room's first line and what it imports."""
    found = {}
    for path in sorted(SOURCE.glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        said = re.search(r"Imports (nothing of the library|[a-z, \n]+)\.\s*$", text)
        assert said is not None, path
        rooms = set() if said[1].startswith("nothing") else {name.strip() for name in said[1].split(",")}
        found[path.parent.name] = (text.splitlines()[0].rstrip(".").replace("``", ""), rooms)
    return found


def levels(rooms: dict[str, tuple[str, set[str]]]) -> list[list[str]]:
    """Rooms by how many floors are below them, the ground floor first."""
    floor: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in floor:
            floor[name] = 1 + max((of(below) for below in rooms[name][1]), default=-1)
        return floor[name]

    for name in rooms:
        of(name)
    return [sorted(n for n in rooms if floor[n] == k) for k in range(max(floor.values()) + 1)]


def text(x: float, y: float, words: str, size: int, colour: str = INK, weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" font-weight="{weight}" text-anchor="middle">'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{QUIET}"/>'


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img">'
    )
    return "\n".join([head, f"<title>{title}</title>", box(0, 0, width, height, PAPER), *parts, "</svg>", ""])


def wrapped(words: str, most: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def layers() -> str:
    rooms = signs()
    floors = levels(rooms)
    width, gap = 1080, 12
    parts, y = [], gap
    for k, names in enumerate(reversed(floors)):
        wide = (width - gap) / len(names) - gap
        height = 36 + 16 * max(len(wrapped(rooms[name][0], int(wide / 7.4))) for name in names)
        for i, name in enumerate(names):
            x = gap + i * (wide + gap)
            parts += [box(x, y, wide, height, SHADES[(len(floors) - k - 1) % len(SHADES)])]
            parts += [text(x + wide / 2, y + 22, f"{name}/", 16, weight="bold")]
            for line, words in enumerate(wrapped(rooms[name][0], int(wide / 7.4))):
                parts += [text(x + wide / 2, y + 42 + 16 * line, words, 12, QUIET)]
        y += height + gap
    return page(width, y, "Rooms of fedvra, bottom first: imports point down only", parts)


def way() -> str:
    width, height, gap = 760, 58, 14
    parts = ['<defs><marker id="a" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">']
    parts += [f'<path d="M0,0 L6,3 L0,6" fill="none" stroke="{QUIET}"/></marker></defs>']
    for k, (room, what, where) in enumerate(ROUND):
        x, y = (gap if where == "server" else 110), gap + k * (height + gap)
        wide = width - 110 - gap
        parts += [box(x, y, wide, height, "#dbeafe" if where == "server" else "#d1fae5")]
        parts += [text(x + wide / 2, y + 23, room, 15, weight="bold"), text(x + wide / 2, y + 44, what, 13, QUIET)]
        if k:
            parts += [
                f'<line x1="{width / 2}" y1="{y - gap}" x2="{width / 2}" y2="{y - 2}" stroke="{QUIET}" marker-end="url(#a)"/>'
            ]
    return page(width, gap + len(ROUND) * (height + gap), "A round: the server's part blue, the clients' green", parts)


if __name__ == "__main__":
    for name, drawn in (("layers.svg", layers()), ("round.svg", way())):
        (IMAGES / name).write_text(drawn, encoding="utf-8")
        print(f"{(IMAGES / name).relative_to(ROOT)} written.")
