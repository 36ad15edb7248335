"""Pictures and tables of runs: in the terminal, and from what they left on disk.

    terminal.py     tables and sentences that fit a terminal; study.py: where several runs stand
    style.py        colours and dashes, the same everywhere; spreads.py: means, deviations, which is best
    gather.py       runs found on disk, grouped; content.py, page.py: the report
    clients.py      the spread of clients' own results
    comparison.py, tuning.py, tables.py, plots.py, figures.py

Imports core, algorithms, runs.
"""
