"""What record-level privacy has cost so far: epsilons, budgets, and how much noise a promise takes.

    accountant.py  epsilon of so many noised answers, by the library ``dp-accounting``
    spending.py    what every client of a run has spent

The rule itself is ``fedvra.core.record_dp``, the private steps are ``fedvra.local.per_record``.

Imports core.
"""
