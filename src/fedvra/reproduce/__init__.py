"""The paper's tables and figures again, each from a recipe: ``fedvra reproduce table3``.

A recipe (``recipes/NAME.yaml``) says which runs a table or figure is made of and what the paper printed. Runs are ordinary run
folders, found again by what determines their numbers, so that nothing is run twice and anything can be stopped and continued.

    recipe.py    reading recipes
    wanted.py    the runs a recipe asks for
    estimate.py  how long the others will take
    jobs.py      running them, several at a time, each in a process of its own
    table.py     measured beside printed, and which cells differ
    figures.py   the curves, one panel for each case
    results.py   everything as one small file, from which table and figure can be made again

Imports core, state, algorithms, engines, runs, show, studies.
"""
