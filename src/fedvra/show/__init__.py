"""Pictures and tables of runs: in the terminal, and from what they left on disk.

    display.py      progress and tables in the terminal
    gather.py       runs found on disk, grouped; content.py, page.py: the report
    comparison.py, tuning.py, tables.py, plots.py, figures.py

Imports core, algorithms, runs.
"""
