"""Tasks by name: data, model and the settings that suit them, one small file each.

A file added to this folder that ends in ``TASKS.add("name", Task(...))``, or an entry point of the group ``fedvra.tasks``
in another distribution, can be given to ``fedvra run``. So can a task in any Python file, by its place: see ``own.py``.

Imports core, models, data, local, problems.
"""

from fedvra.tasks.base import TASKS, Task

__all__ = ["TASKS", "Task"]
