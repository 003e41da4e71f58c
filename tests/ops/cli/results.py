"""What a command printed, where nodes of this process log to the same standard output."""

import json
from typing import Any

from typer.testing import Result


def told(done: Result) -> Any:
    """What a command printed as JSON."""
    (line,) = [one for one in done.stdout.splitlines() if one.startswith(("{", "["))]
    return json.loads(line)
