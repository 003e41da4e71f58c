"""gRPC's switch for forks: off unless the program has set it. gRPC reads it when it is imported.

Switched on, as it is by default, gRPC's core stops its threads at each fork, and begins them again.
Where grpc.aio runs it cannot, and kills children by SIGSEGV.
"""

import os

SWITCH = "GRPC_ENABLE_FORK_SUPPORT"

os.environ.setdefault(SWITCH, "0")
