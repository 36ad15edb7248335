"""Does a change leave every number bitwise as it was? Runs ``tests/bits`` on two checkouts, on this machine, and compares.

    git worktree add /tmp/before main
    python scripts/same_bits.py --against /tmp/before

prints the runs whose bits differ, or that raise in one checkout only, and exits with 1 if there are any. Bits differ between
processors, so what is committed is a few float64 numbers of each run, which ``tests/test_committed_values.py`` compares at
rtol 1e-9; after a change that is meant to change them, write them anew:

    python scripts/same_bits.py --write tests/values.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
Results = dict[str, dict[str, Any]]


def run(checkouts: list[Path], part: str = "") -> list[Results]:
    """The runs of this checkout's ``tests/bits`` with the library of each, side by side."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number, checkout in enumerate(checkouts):
            source, target = checkout.resolve() / "src", Path(folder) / f"{number}.json"
            if not (source / "fedvra").is_dir():
                sys.exit(f"{checkout} is no checkout of fedvra: there is no {source / 'fedvra'}.")
            command = [sys.executable, str(HERE / "tests" / "bits" / "run.py"), str(target), part]
            environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
            started.append((source, target, subprocess.Popen(command, env=environment)))
        codes = [process.wait() for *_, process in started]
        if any(codes):
            sys.exit("the runs did not come to their end.")
        found = []
        for source, target, _ in started:
            written = json.loads(target.read_text())
            if written["src"] != str(source):
                sys.exit(f"meant to run {source}, but Python imported {written['src']}.")
            found.append(written["cases"])
        return found


def difference(new: dict[str, Any], old: dict[str, Any]) -> str:
    """What of one run is not the same, in a line; nothing where all is."""
    if "raises" in new or "raises" in old:
        same = new.get("raises", "").split(":")[0] == old.get("raises", "").split(":")[0]
        return "" if same else f"new: {new.get('raises', 'runs')}; old: {old.get('raises', 'runs')}"
    a, b = new["bits"], old["bits"]
    parts = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    if not parts:
        return ""
    pairs = zip(new["numbers"], old["numbers"], strict=False)
    most = max(abs(x - y) / max(abs(x), abs(y)) if x != y else 0.0 for x, y in pairs)
    return f"{', '.join(parts)} (a number of it by {most:.1e} of itself)"


def compare(against: Path, part: str) -> int:
    new, old = run([HERE, against], part)
    found = {name: difference(new[name], old[name]) for name in new}
    for name, what in found.items():
        if what:
            print(f"{name}: {what}")
    differ = sum(map(bool, found.values()))
    raising = sum("raises" in new[name] and not what for name, what in found.items())
    print(f"{len(new)} runs, {differ} differ" + (f", {raising} raise in both" if raising else "") + ".")
    return int(differ > 0)


def write(target: Path) -> int:
    """One line per run, so that a change of numbers is read in the diff."""
    (found,) = run([HERE])
    raising = [name for name, result in found.items() if "raises" in result]
    if raising:
        sys.exit("\n".join(f"{name}: {found[name]['raises']}" for name in raising))
    lines = [
        f"{json.dumps(name)}: {json.dumps([float(f'{x:.12g}') for x in result['numbers']])}"
        for name, result in found.items()
        if name.endswith("[float64]")
    ]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(lines)} runs in {target}.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--against", type=Path, metavar="CHECKOUT", help="the checkout to compare this one with")
    what.add_argument("--write", type=Path, metavar="FILE", help="write the float64 numbers of this checkout")
    parser.add_argument(
        "--only", default="", metavar="PART", help='runs with this in their name, e.g. "quadratic | fedvra"'
    )
    arguments = parser.parse_args()
    return write(arguments.write) if arguments.write else compare(arguments.against, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
