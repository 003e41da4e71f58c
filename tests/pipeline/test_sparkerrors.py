"""How Spark's errors are shown."""

import pytest

from duolog_server.pipeline.sparkerrors import CHARACTERS_MAX, reason_of

JVM = """An error occurred while calling o77.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 3 \
times, most recent failure: Lost task 0.2 in stage 1.0 (TID 9) (h executor driver): java.io.\
IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:3144)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
READ = """An error occurred while calling o80.count.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:///x.parquet. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.f(Q.scala:1)
Caused by: java.lang.RuntimeException: file:/x.parquet is not a Parquet file.
\tat a.B.c(B.java:1)
"""
PYTHON = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    raise
ValueError: row 7 has no name

\tat org.apache.spark.api.python.BasePythonRunner.f(P.scala:1)
"""
OURS = """Job aborted due to stage failure: Task 0 failed: org.apache.spark.PythonException:
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
duolog._errors.BadRequest: topic 'T' does not exist
\tat org.apache.spark.X
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (JVM, "java.io.IOException: No space left on device"),
        (
            READ,
            "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while "
            "reading file file:///x.parquet. SQLSTATE: KD001; caused by RuntimeException: "
            "file:/x.parquet is not a Parquet file.",
        ),
        (PYTHON, "ValueError: row 7 has no name"),
        (OURS, "topic 'T' does not exist"),
        (
            OURS.replace("duolog._errors", "duolog_server.pipeline.errors"),
            "topic 'T' does not exist",
        ),
        (
            "[UNRESOLVED_COLUMN] A column `x`. SQLSTATE: 1;\n'Project",
            "[UNRESOLVED_COLUMN] A column `x`. SQLSTATE: 1;",
        ),
        ("", "Exception"),
    ],
)
def test_an_error_shows_its_reason_without_the_stack_trace(text: str, reason: str) -> None:
    assert reason_of(Exception(text)) == reason


def test_causes_are_taken_from_the_jvm_and_long_ones_are_shortened() -> None:
    class Java(Exception):
        def __init__(self, text: str, cause: "Java | None" = None) -> None:
            self.text, self.cause = text, cause

        def getCause(self) -> "Java | None":
            return self.cause

        def toString(self) -> str:
            return self.text

    class Told(Exception):
        java_exception = Java("a.B: top", Java("a.b.C: middle", Java("a.b.Deep: the disk is full")))

    assert reason_of(Told("it failed")) == "it failed; caused by Deep: the disk is full"
    assert len(reason_of(Exception("x" * 5000))) == CHARACTERS_MAX + 3
