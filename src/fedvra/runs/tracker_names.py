"""Which trackers there are. They are callbacks; their names are options of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedvra.core.registry import Registry

if TYPE_CHECKING:
    from fedvra.callbacks.trackers.base import Tracker

TRACKERS: Registry[type[Tracker]] = Registry("tracker", "fedvra.callbacks.trackers", group="fedvra.trackers")
