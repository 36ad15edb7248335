"""Algorithms with hyper-parameters as a comparison names them: ``fedvra:gamma=0.1,a=5 as strong,fedavg``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedvra.algorithms import REGISTRY
from fedvra.core.calls import split_calls
from fedvra.core.errors import require
from fedvra.runs.algorithm_text import label_of


@dataclass(frozen=True)
class Variant:
    """An algorithm with the hyper-parameters that were given for it, and perhaps a name of one's own."""

    algorithm: str
    given: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    @property
    def label(self) -> str:
        """In tables and plots."""
        return self.name or labelled(self.algorithm, self.given)

    @property
    def slug(self) -> str:
        """As the name of a folder."""
        if self.name is not None:
            return re.sub(r"[^\w.=+-]+", "-", self.name).strip("-.") or self.algorithm
        parts = [self.algorithm, *(f"{k}={v}" for k, v in self.given.items())]
        return "_".join(parts).replace("/", "%2F")


def labelled(algorithm: str, given: Mapping[str, Any]) -> str:
    """An algorithm's label with hyper-parameters, numbers to four digits.

    >>> labelled("fedvra", {"gamma": 0.123456, "d": "1/p"}), labelled("fedvra", {"gamma": "auto", "a": "auto"})
    ('FedVRA (gamma=0.1235, d=1/p)', 'FedVRA (auto)')
    """
    label = label_of(algorithm)
    values = {name: short(value) for name, value in given.items()}
    if values and set(values.values()) == {"auto"}:
        return f"{label} (auto)"
    return f"{label} ({', '.join(f'{name}={value}' for name, value in values.items())})" if values else label


def short(value: Any) -> str:
    """A value as a label has it.

    >>> short("0.10"), short(1234.567), short("0.3333333"), short("1/p"), short(7)
    ('0.1', '1235', '0.3333', '1/p', '7')
    """
    if isinstance(value, list | tuple):
        return ",".join(map(short, value))
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)


def parse_variants(text: str) -> list[Variant]:
    """Algorithms separated by commas, each perhaps with hyper-parameters after a colon and a name after ``as``.

    >>> [v.slug for v in parse_variants("fedavg,fedvra:gamma=0.1,a=5,scaffold")]
    ['fedavg', 'fedvra_gamma=0.1_a=5', 'scaffold']
    >>> [v.label for v in parse_variants("fedvra:gamma=0.1,a=10 as strong,fedvra,fedavg as the baseline")]
    ['strong', 'FedVRA', 'the baseline']
    """
    names: dict[int, str] = {}
    pieces: list[str] = []
    calls = -1
    for piece in text.split(","):
        call, _, name = re.sub(r"\s+as\s+", "\n", piece.strip(), count=1).partition("\n")
        pieces.append(call)
        calls += bool(call) and (":" in call or "=" not in call)  # else a further hyper-parameter of the one before it
        if name:
            names[calls] = name.strip()
    made = [Variant(name, given, names.get(k)) for k, (name, given) in enumerate(split_calls(",".join(pieces)))]
    for variant in made:
        REGISTRY.get(variant.algorithm)
    require(bool(made), "name at least one algorithm to compare, e.g. --algorithms fedvra,fedavg.")
    for k, variant in enumerate(made):
        require(variant not in made[:k], f"{variant.slug} is named twice; name each algorithm and setting once.")
        before = {other.slug for other in made[:k]} | {other.label for other in made[:k]}
        require(
            not {variant.slug, variant.label} & before,
            f"two of the algorithms would be called {variant.label!r}: give one a name of its own, "
            f"{variant.algorithm}:... as NAME.",
        )
    return made
