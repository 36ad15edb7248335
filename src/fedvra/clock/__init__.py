"""Simulated time: how long a round takes on devices and networks that differ, and whose reply comes too late.

    system.py   what steps and transfers cost each client, the deadline, and the time of a round
    windows.py  when clients are reachable
    reading.py  the same from a file, with traces of devices

Imports core.
"""
