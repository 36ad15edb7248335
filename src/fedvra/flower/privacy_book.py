"""A node's own book of privacy: what its records have spent, in whatever experiment, and what it said of their number.

The budget belongs to the records and not to a run, for a server could begin as many runs as it likes. So there is one book for
a client in the node's folder, beside the ledgers of its experiments. An answer is entered *before* it is computed: a crash
wastes budget, and never gives any away. A book that cannot be read stops the node until its owner has looked at it.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fedvra.core.errors import FedvraError, require
from fedvra.core.files import replace_durably
from fedvra.core.record_dp import FromSystem, Guard, RecordDP
from fedvra.flower.private import private_files
from fedvra.privacy.accountant import Account, Answer, epsilon, together
from fedvra.privacy.spending import count_account, steps_account
from fedvra.state.durable import seal


class BudgetSpentError(FedvraError):
    """What was asked for would cost more than the node's owner allows."""


@dataclass(frozen=True)
class Entries:
    """What a book holds."""

    answers: Account
    told: tuple[tuple[int, float, int], ...] = ()
    """(n_i, noise on it, what was said of it), each noised once."""


class PrivacyBook:
    """The book of one client, in a file of the node's folder.

    >>> import tempfile
    >>> book = PrivacyBook(Path(tempfile.mkdtemp()), client=0)
    >>> rule = RecordDP(noise=2, count_noise=5)
    >>> book.told(rule, samples=100) == book.told(rule, samples=100)  # drawn once
    True
    """

    def __init__(self, root: Path, client: int, key: bytes | None = None) -> None:
        self.path, self._key = root / f"privacy-{client:06d}.json", key

    def told(self, rule: RecordDP, samples: int) -> int:
        """n_i with noise, the same whenever it is asked for; the first time is an answer like any other."""
        if not rule.count_noise:
            return samples
        with self._alone():
            entries = self._read()
            for held, noise, said in entries.told:
                if (held, noise) == (samples, rule.count_noise):
                    return said
            account = self._within(rule, together([entries.answers, count_account(rule)]))
            (said,) = rule.told(np.array([samples]), FromSystem().normal(1)).tolist()
            self._write(Entries(account, (*entries.told, (samples, rule.count_noise, said))))
            return int(said)

    def charge(self, rule: RecordDP, samples: int, batch_size: int | None, steps: int) -> float:
        """Enter so many local steps of a client that says it holds so many samples; the epsilon that all has come to.

        Raises:
            BudgetSpentError: that would exceed ``rule.max_epsilon``; nothing was entered.
            UsageError: this is no work; whoever orders fewer than no steps would have others given back.
        """
        require(steps >= 1, f"privacy: an answer is made of 1 local step or more, not {steps}.")
        require(batch_size is None or batch_size >= 1, f"privacy: there are no batches of {batch_size} records.")
        with self._alone():
            entries = self._read()
            new = steps_account(rule, samples, batch_size, steps)
            account = self._within(rule, together([entries.answers, new]))
            self._write(replace(entries, answers=account))
            return epsilon(account, rule.delta)

    def guard(self, rule: RecordDP, samples: int, batch_size: int | None, steps: int) -> tuple[Guard, float]:
        """How so many steps are made private, with draws that nobody can foretell; they are paid for when this returns."""
        spent = self.charge(rule, samples, batch_size, steps)
        return Guard(rule, np.array([samples]), secret=True), spent

    def _within(self, rule: RecordDP, account: dict[Answer, int]) -> dict[Answer, int]:
        if rule.max_epsilon is not None and (found := epsilon(account, rule.delta)) > rule.max_epsilon:
            shown = "infinite" if math.isinf(found) else f"{found:.3g}"
            raise BudgetSpentError(
                f"its privacy budget is spent: epsilon would be {shown}, and {rule.max_epsilon:g} is what it allows."
            )
        return account

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with private_files(self.path.parent):
            lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        with lock:
            yield

    def _write(self, entries: Entries) -> None:
        answers = [[answer.rate, answer.noise, count] for answer, count in entries.answers.items()]
        written: dict[str, Any] = {"answers": answers, "told": [list(each) for each in entries.told]}
        if self._key is not None:
            written["mac"] = seal(written, self._key)
        with private_files(self.path.parent):
            replace_durably(self.path, json.dumps(written).encode())

    def _read(self) -> Entries:
        if not self.path.exists():
            return Entries({})
        try:
            found = json.loads(self.path.read_bytes())
            mac = found.pop("mac", "")
            if self._key is not None and not hmac.compare_digest(mac, seal(found, self._key)):
                raise ValueError("it was changed by somebody without the key")
            answers = {Answer(float(rate), float(noise)): int(count) for rate, noise, count in found["answers"]}
            return Entries(answers, tuple((int(n), float(s), int(said)) for n, s, said in found["told"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedvraError(
                f"the book of privacy {self.path} cannot be read ({error}): restore it, for nothing else tells what was spent."
            ) from error
