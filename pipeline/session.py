"""The Spark session of a job: the caller's, spark-submit's, or a local one."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from duolog._sparkworker import task_begins

from duolog_server.pipeline.errors import BadJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

TASK_RETRIES = 3
JAVA_SECONDS = 60


def spark_session(name: str, master: str = "", *, topics: bool = True) -> "SparkSession":
    """A session for a job. master: where Spark runs; default `local[*]`.

    topics: whether the job reads or writes topics. To know the data source, Spark starts its SQL
    and a Python process, which takes seconds. Raises BadJob if PySpark or Java is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise BadJob("PySpark is not installed: pip install 'duolog-server[pipeline]'") from None
    if not java_runs():
        raise BadJob("Java 17 is not installed (apt-get install openjdk-17-jre-headless)")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has its own settings
    local = not submitted and (not master or master.startswith("local"))
    os.environ.setdefault("PYSPARK_PYTHON", task_python() if local else sys.executable)
    _show_packages()
    builder = SparkSession.builder.appName(f"duolog {name}")
    if not submitted:
        builder = builder.master(master or f"local[*,{TASK_RETRIES}]")
        for key, value in _SETTINGS.items():
            builder = builder.config(key, value)
        if local:
            # Spark's default of 200 tasks per shuffle suits clusters; here it only costs time.
            builder = builder.config("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 1)))
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            for key in ("spark.driver.host", "spark.driver.bindAddress"):
                builder = builder.config(key, "127.0.0.1")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if topics:
        from duolog.spark import register

        # Spark looks for sources in the folders of its own path, which an editable install, or one
        # that came with spark-submit, may not be in.
        register(session)
    return session


def end_session(spark: "SparkSession") -> None:
    """Stop the session, its Python processes before its JVM.

    One that waits for its next task when the JVM ends finds its pipe closed, and PySpark prints a
    traceback of that into the user's terminal, now and then cut off in the middle.
    """
    try:
        gateway = getattr(spark.sparkContext._gateway, "proc", None)
        if gateway is not None:  # spark-submit's JVM is no child of this process
            spark.sparkContext.setLogLevel("OFF")
            for daemon in _daemons(gateway.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(daemon, signal.SIGKILL)
    finally:
        spark.stop()


def _daemons(jvm: int) -> list[int]:
    """PySpark's daemons, children of a JVM; each leads the group of its workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        process = int(path.name)
        try:
            parent, group = (path / "stat").read_bytes().rpartition(b")")[2].split()[1:3]
            command = (path / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if int(parent) == jvm and int(group) == process and b"pyspark.daemon" in command:
            found.append(process)
    return found


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


def java_runs() -> bool:
    """Whether Java starts. Raises BadJob if it hangs."""
    java = shutil.which("java", path=_java_path())
    if java is None:
        return False
    try:
        tried = subprocess.run([java, "-version"], capture_output=True, timeout=JAVA_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadJob(f"{java} -version did not answer within {JAVA_SECONDS} s") from None
    return tried.returncode == 0


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    path = os.environ.get("PATH", "")
    return f"{home}/bin{os.pathsep}{path}" if home else path


def _show_packages() -> None:
    """Make the packages of jobs importable in Spark's workers, if they are not on their path."""
    import duolog

    import duolog_server

    folders = [str(Path(str(one.__file__)).parent.parent) for one in (duolog, duolog_server)]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    wanted = [folder for folder in folders if folder not in known and "site-packages" not in folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([*wanted, *(word for word in known if word)])


def each(
    spark: "SparkSession", work: Callable[[T], R], items: Sequence[T], what: str = ""
) -> list[R]:
    """Do something with each item in a task of its own; results in the order of the items.

    For work that returns little: it moves to where the bytes are. what: says so on a progress bar.
    """
    if not items:
        return []
    numbered = list(enumerate(items))
    frame = spark.sparkContext.parallelize(numbered, len(numbered))
    if what:
        spark.sparkContext.setJobDescription(what)

    def one(part: Iterable[Any]) -> Iterable[Any]:
        task_begins()
        return ((number, work(item)) for number, item in part)

    found = dict(frame.mapPartitions(one).collect())
    return [found[number] for number in range(len(items))]


# The Python that Spark starts for tasks and plans: one that finds PySpark as it is installed.
#
# Spark puts an archive with PySpark's sources before all other packages, and Python compiles what
# it imports from there in every process: more than a second of CPU time for each of the five or six
# processes that a short job starts one after the other.
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
