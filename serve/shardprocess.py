"""What a shard's process is before it is a node.

    python -m duolog_server.serve.shardprocess PARENT CORE,CORE... PROGRAM ARGUMENT...

Without the cores it may run on any of them. It gets SIGTERM when the supervisor ends in any way:
what is left of a killed one holds no lock when the next one starts. The program keeps all of this.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind the process, and have the program in its place."""
    parent, cores, *program = sys.argv[1:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit("prctl: this kernel ends no process with its parent")
    if os.getppid() != int(parent):  # it ended before
        sys.exit(0)
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
