"""Where local work is done: in this process, in a pool of processes on this machine."""
