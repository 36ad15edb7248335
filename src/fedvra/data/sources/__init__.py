"""Data sets by name: one file each.

A new one is a :class:`Source` registered with ``SOURCES.add``, in a file of this package or in a package of your own that
names it under the entry-point group ``fedvra.data.sources``.
"""

from fedvra.data.sources.obtaining import data_folder, get, is_stored, load
from fedvra.data.sources.source import SOURCES, Arrays, Source

__all__ = ["SOURCES", "Arrays", "Source", "data_folder", "get", "is_stored", "load"]
