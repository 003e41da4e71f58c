"""The installed server: duolog's SDK imports none of it, and runs its modules in processes."""

import importlib.util
import shutil
import sys
from pathlib import Path

from duolog.testing._process import ChildError

COMMAND = "duolog"


class ServerMissing(ChildError):
    """No server is installed where this program could start one."""


def server_python() -> str:
    """The Python interpreter that has the package duolog-server. Raises ServerMissing.

    This one, if the package is in its environment; else that of the `duolog` command on the path,
    as pipx and `uv tool` install it.
    """
    if importlib.util.find_spec("duolog_server") is not None:
        return sys.executable
    command = shutil.which(COMMAND)
    if command is None:
        raise ServerMissing(
            "cannot start a node: the package duolog-server is not installed beside "
            f"{sys.executable}, and no `{COMMAND}` command is on the path; "
            "install one: pip install duolog-server"
        )
    python = Path(command).resolve().with_name("python3")
    if not python.exists():
        raise ServerMissing(
            f"cannot start a node: {command} has no Python interpreter beside it ({python}); "
            "install the server into this environment: pip install duolog-server"
        )
    return str(python)
