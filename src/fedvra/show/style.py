"""How algorithms look, the same everywhere: on the page, in figures, in the documentation.

Every algorithm has a colour and a dash of its own, whatever it is shown beside. Several settings of one algorithm share its
colour, from dark to light in their order, and differ in their dashes; where there is nothing else to show, they are
coloured in sequence. Colours stand out from both backgrounds by 3:1 at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Colour: TypeAlias = tuple[float, float, float]
Dash: TypeAlias = tuple[float, ...]

SOLID: Dash = ()
DASHES: tuple[Dash, ...] = (SOLID, (6, 2), (2, 1.2), (6, 2, 1.5, 2), (4, 1, 1, 1, 1, 1), (9, 3), (1, 2.2), (3, 1, 1, 1))
"""In units of a line's width."""
ALGORITHMS: dict[str, tuple[str, Dash]] = {
    "fedvra": ("#0062b1", SOLID),
    "fedvra-u": ("#0087a8", (9, 3)),
    "fedavg": ("#6b6f76", (6, 2)),
    "fedprox": ("#a86a00", (2, 1.2)),
    "scaffold": ("#cf4a00", (6, 2, 1.5, 2)),
    "feddyn": ("#008060", (4, 1, 1, 1, 1, 1)),
    "fednova": ("#7d4fc4", (1, 2.2)),
    "fedadmm": ("#c0398f", (3, 1, 1, 1)),
    "fedpd": ("#6f7d00", (9, 2, 2, 2)),
    "vrlsgd": ("#8c3b3b", (5, 3)),
}
OTHERS = ("#3d55d6", "#8a5a2b", "#00838f", "#a03ac0", "#4d7c0f", "#b0305c")
"""For algorithms of other packages."""
FEW = 6
"""Sequential colours that can be told apart without dashes."""
FIRST = "fedvra"
"""Drawn last, so that nothing covers it."""
VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
"""Even steps of matplotlib's viridis: it keeps its order in grey and for colour-blind eyes."""
DARK_PAPER, LIGHT_PAPER = "#1b1f25", "#ffffff"
LEAST_CONTRAST = 3.0


@dataclass(frozen=True)
class Look:
    """A line's colour on a light and on a dark background, and its dash."""

    light: str
    dark: str
    dash: Dash

    @property
    def linestyle(self) -> Any:
        """As matplotlib has it."""
        return (0, self.dash) if self.dash else "-"


def looks(algorithms: Sequence[str]) -> list[Look]:
    """Of some lines, by the algorithm of each; the same algorithm again is another setting of it.

    >>> [look.light for look in looks(["fedavg", "fedvra"])]
    ['#6b6f76', '#0062b1']
    """
    if (
        len(algorithms) > 2 and len(set(algorithms)) == 1
    ):  # nothing but settings of one: the colour can tell their order
        pairs = zip(ramp(len(algorithms)), ramp(len(algorithms), dark=True), strict=True)
        return [
            Look(light, dark, DASHES[k % 3 if len(algorithms) > FEW else 0]) for k, (light, dark) in enumerate(pairs)
        ]
    strangers = sorted({name for name in algorithms if name not in ALGORITHMS})
    made = []
    for k, name in enumerate(algorithms):
        place = strangers.index(name) if name in strangers else 0
        base, dash = ALGORITHMS.get(name) or (OTHERS[place % len(OTHERS)], DASHES[(place + 1) % len(DASHES)])
        same, before = algorithms.count(name), algorithms[:k].count(name)
        if before:
            dash = [each for each in DASHES if each != dash][(before - 1) % (len(DASHES) - 1)]
        share = before / (same - 1) if same > 1 else 0.0
        light, dark = _shade(base, share if same > 1 else None)
        made.append(Look(light, dark, dash))
    return made


def order(algorithms: Sequence[str]) -> list[int]:
    """In which order lines are drawn: as they come, but FedVRA last."""
    return sorted(range(len(algorithms)), key=lambda k: algorithms[k] == FIRST)


def ramp(number: int, dark: bool = False) -> list[str]:
    """Sequential colours, from the least to the greatest: for values that have an order, such as a = 1, 5, 10, 20.

    >>> ramp(3)
    ['#209c88', '#37598c', '#440154']
    """
    low, high = (0.42, 1.0) if dark else (0.55, 0.0)
    return [_hex(_along(low + (high - low) * (k / (number - 1) if number > 1 else 1.0))) for k in range(number)]


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG.

    >>> round(contrast("#000000", "#ffffff"), 1)
    21.0
    """
    low, high = sorted((_luminance(_rgb(one)), _luminance(_rgb(other))))
    return (high + 0.05) / (low + 0.05)


def _shade(base: str, share: float | None) -> tuple[str, str]:
    """A colour for light and for dark paper; of several settings from the strongest (0) to the faintest (1) one can see."""
    colour = _rgb(base)
    light = colour if share is None else _mixed(_mixed(colour, (0, 0, 0), 0.35), _faintest(colour, LIGHT_PAPER), share)
    bright = _mixed(colour, (1, 1, 1), 0.42)
    dark = bright if share is None else _mixed(_mixed(colour, (1, 1, 1), 0.65), _faintest(bright, DARK_PAPER), share)
    return _hex(light), _hex(dark)


def _faintest(colour: Colour, paper: str) -> Colour:
    """As near to the paper as it may come."""
    steps = [_mixed(colour, _rgb(paper), k / 50) for k in range(50)]
    return [each for each in steps if contrast(_hex(each), paper) >= LEAST_CONTRAST + 0.1][-1]


def _mixed(one: Colour, other: Colour, share: float) -> Colour:
    a, b, c = ((1 - share) * x + share * y for x, y in zip(one, other, strict=True))
    return a, b, c


def _along(place: float) -> Colour:
    """Viridis at a place from 0 to 1."""
    steps = place * (len(VIRIDIS) - 1)
    k = min(int(steps), len(VIRIDIS) - 2)
    return _mixed(_rgb(VIRIDIS[k]), _rgb(VIRIDIS[k + 1]), steps - k)


def _luminance(colour: Colour) -> float:
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _rgb(text: str) -> Colour:
    red, green, blue = (int(text[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{round(255 * x):02x}" for x in colour)
