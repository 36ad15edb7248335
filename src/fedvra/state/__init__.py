"""What lasts: the clients' rows, files that are there whole or not at all, folders and their locks.

    client_store.py  one row per client that took part, staged, then committed or rolled back
    row_books.py     which row is whose, wherever rows are
    shared_rows.py   rows by slot, on either side of a process boundary
    segments.py      the memory or disk that rows lie in
    durable.py       files and snapshots that survive a crash
    model_file.py    what was learned, as a file
    folders.py       folders of runs and their locks
    frozen.py        what belongs to a model and is never trained, by its hash

Imports core.
"""
