"""The Python that Spark starts for tasks and plans: one that finds PySpark as it is installed.

Spark puts an archive with PySpark's sources before all other packages, and Python compiles what it
imports from there in every process: more than a second of CPU time for each of the five or six
processes that a short job starts one after the other.
"""

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("taskpython.sh")
PYTHON = "DUOLOG_TASK_PYTHON"  # what the program starts


def task_python() -> str:
    """The path of the program, for Spark on this machine; else that of the Python that runs.

    The program inherits which Python it starts.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    ours = Path(os.environ.get("SPARK_HOME") or home).resolve() == home.resolve()
    archived = (home / "python" / "lib" / "pyspark.zip").is_file()
    if not (ours and archived and os.access(PROGRAM, os.X_OK)):
        return sys.executable
    os.environ[PYTHON] = sys.executable
    return str(PROGRAM)
