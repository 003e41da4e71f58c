"""For spark-submit: the same commands as `duolog pipeline`, with the session it brings.

spark-submit --master spark://... cluster/submit.py audit DIR

Runs with the packages of PYSPARK_PYTHON where they are installed, else with those of this
repository; executors need the same.
"""

import importlib.util
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent


def find_packages() -> None:
    """Put this repository on the path, where its packages are not installed."""
    for package, folder in (("duolog_server", HOME), ("duolog", HOME / "client")):
        if importlib.util.find_spec(package) is None:
            sys.path.append(str(folder))


if __name__ == "__main__":
    find_packages()
    from duolog_server.ops.cli.main import run
    from duolog_server.ops.cli.pipeline import app

    run(app)
