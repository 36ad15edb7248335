"""The clients' cost functions f_i.

    base.py             what a problem is
    supervised.py       a model, a loss and labelled data; supervised_oracle.py: its exact derivatives
    quadratic.py        quadratics with a known minimiser
    two_block.py        a second block y_i that never leaves its client; semisupervised.py, pseudo_labels.py, clustering.py
    projections.py      the sets X and Y, by their projections
    oracle.py           f_i with its derivatives, for theory and diagnostics

Imports core, data, local.
"""
