"""How algorithms, samplers, data sets, models and tasks are found by name.

One registry per kind. It imports every module of one package, its home (so that adding a file is enough), and then whatever
other distributions announce under its entry-point group, e.g. in their pyproject.toml::

    [project.entry-points."fedvra.algorithms"]
    mine = "my_package.my_algorithm:MyAlgorithm"
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from fedvra.core.errors import UsageError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to objects of one kind; filled by ``@registry.add("name")`` and by entry points, read by ``registry.get``."""

    def __init__(self, kind: str, home: str, group: str) -> None:
        self.kind = kind
        self.home = home
        self.group = group
        self._items: dict[str, T] = {}
        self._discovered = False

    def add(self, name: str, item: T) -> T:
        """Register ``item`` under ``name``; the same name twice is an error, so that nothing is shadowed silently."""
        if name in self._items and self._items[name] is not item:
            raise UsageError(f"the {self.kind} {name!r} is registered twice; choose another name.")
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        self._discover()
        if name not in self._items:
            raise unknown_name(self.kind, name, self._items)
        return self._items[name]

    def names(self) -> list[str]:
        self._discover()
        return sorted(self._items)

    def items(self) -> Iterator[tuple[str, T]]:
        self._discover()
        yield from sorted(self._items.items())

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        package = importlib.import_module(self.home)
        for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
            importlib.import_module(f"{self.home}.{module.name}")
        for point in entry_points(group=self.group):
            self.add(point.name, point.load())
