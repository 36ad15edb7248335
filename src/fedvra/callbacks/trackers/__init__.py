"""Experiment trackers that people already use: ``fedvra run mnist --track tensorboard``, one small file each.

A file added to this folder that ends in ``TRACKERS.add("name", MyTracker)``, or an entry point of the group
``fedvra.trackers`` in another distribution, can be given to ``--track``. Nothing of a tracker's own package is imported before
a run asks for it.
"""

from fedvra.callbacks.trackers.base import TRACKERS, Notes, Tracker, make_trackers

__all__ = ["TRACKERS", "Notes", "Tracker", "make_trackers"]
