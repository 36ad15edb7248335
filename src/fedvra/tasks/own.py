"""Tasks of one's own, by the place where they are written: ``path/to/mine.py:task`` or ``my_package.mine:task``.

No packaging and no entry point: a Python file is read as ``python FILE`` would read it, with its folder on the path, and a
module is found as ``python -m`` would find it, from the folder one is in. What the name after the colon leads to is a
:class:`~fedvra.tasks.base.Task`, or a function of a run's options that returns the problem and its data.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from types import ModuleType
from typing import Any

from fedvra.core.errors import FedvraError, UsageError, require
from fedvra.tasks.base import TASKS, Task

_READ: dict[tuple[Path, int], ModuleType] = {}
"""Files that were read, by path and time of their last change."""


def find_task(name: str) -> Task:
    """The task that a name stands for: a registered one, or ``FILE.py:NAME``, ``MODULE:NAME``."""
    where, colon, attribute = name.rpartition(":")
    if not colon and (name.endswith(".py") or "/" in name):
        raise UsageError(f"say which task of {name} is meant: {name}:NAME, for example {name}:task.")
    if not colon:
        return TASKS.get(name)
    require(bool(where and attribute), f"a task of your own is FILE.py:NAME or MODULE:NAME, got {name!r}.")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_module(where)
    found = getattr(module, attribute, None)
    if isinstance(found, Task):
        return found
    if callable(found) and not isinstance(found, type):
        return Task((getdoc(found) or "").partition("\n")[0], found)
    known = [key for key, value in vars(module).items() if isinstance(value, Task) or _is_own(value, module)]
    offers = f"it has {', '.join(known)}" if known else "it has neither tasks nor functions"
    kind = "is not there" if found is None else f"is of type {type(found).__name__}"
    raise UsageError(
        f"the task {name}: {attribute} {kind}; it must be an fv.Task, or a function of the options that returns a problem "
        f"and its data ({offers})."
    )


def short_name(name: str) -> str:
    """A task's name for folders: the file's or module's own, with the attribute where that is not just ``task``.

    >>> short_name("mnist"), short_name("study/mine.py:task"), short_name("my_package.mine:small")
    ('mnist', 'mine', 'mine-small')
    """
    where, colon, attribute = name.rpartition(":")
    if not colon:
        return name
    stem = where.removesuffix(".py").replace("\\", "/").rpartition("/")[2].rpartition(".")[2]
    return stem if attribute == "task" else f"{stem}-{attribute}"


def make(name: str, config: Any) -> tuple[Any, Any]:
    """(problem, data) of the task of that name; what goes wrong in a task of one's own is said with its line."""
    from fedvra.problems.base import Problem

    task = find_task(name)
    if ":" not in name:
        return task.make(config)
    made: Any = _said(lambda: task.make(config), f"the task {name} failed")
    problem, data = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    require(
        isinstance(problem, Problem),
        f"the task {name} must return a problem such as fv.Supervised(model) and its data, (problem, data), "
        f"got {_kind(made)}.",
    )
    return problem, data


def _from_file(path: Path) -> ModuleType:
    require(path.is_file(), f"there is no file {path}: name it as seen from {Path.cwd()}.")
    path = path.resolve()
    key = path, path.stat().st_mtime_ns
    if key not in _READ:
        name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"  # its own: random.py may exist twice
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        _look_in(path.parent)
        before = sys.modules.get(name)
        sys.modules[name] = module
        try:
            _said(lambda: spec.loader.exec_module(module), f"{path} cannot be read")  # type: ignore[union-attr]
        except BaseException:
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
            raise
        _READ[key] = module
    return _READ[key]


def _from_module(name: str) -> ModuleType:
    _look_in(Path.cwd())
    try:
        module: ModuleType = _said(lambda: importlib.import_module(name), f"{name} cannot be imported")
        return module
    except UsageError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name and f"{name}.".startswith(f"{missing.name}."):
            raise UsageError(
                f"there is no module {missing.name}: start from the folder it is in, install it, or name a file, "
                "path/to/mine.py:task."
            ) from None
        raise


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _said(do: Callable[[], Any], what: str) -> Any:
    """What it returns; an exception as one sentence with the line it came from."""
    try:
        return do()
    except FedvraError:
        raise
    except Exception as error:
        steps = [step for step in traceback.extract_tb(error.__traceback__) if "importlib" not in step.filename]
        at = f" in line {steps[-1].lineno} of {steps[-1].filename}" if len(steps) > 1 else ""
        if isinstance(error, SyntaxError):
            at = f" in line {error.lineno} of {error.filename}"
        raise UsageError(f"{what}: {type(error).__name__}: {error}{at}.") from error


def _is_own(value: Any, module: ModuleType) -> bool:
    return callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module.__name__


def _kind(made: Any) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(each).__name__ for each in made)})"
    return type(made).__name__
