"""Errors that Spark shows as one line: what is wrong, without the way through Spark's workers.

PySpark's workers send an error with its traceback unless SPARK_HIDE_TRACEBACK is set, which they
read at that moment, just before they ask for the error's text. So it is set for our own errors, and
taken back when the text is asked for: other errors in the same worker keep their tracebacks.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from duolog._errors import DuologError

HIDE = "SPARK_HIDE_TRACEBACK"
WORKER = "pyspark.worker_util"  # is only imported there

F = TypeVar("F", bound=Callable[..., Any])


class _OneLine:
    """Takes the setting back as soon as its text is wanted."""

    def __str__(self) -> str:
        os.environ.pop(HIDE, None)
        return super().__str__()


def _shown(kind: type[DuologError]) -> type[DuologError]:
    public = kind.__module__.partition("._")[0]  # as users import it
    names = {"__module__": public, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (_OneLine, kind), names)


def one_line(work: F) -> F:
    """For what Spark's workers call: errors of ours reach the user as one line."""

    @functools.wraps(work)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return work(*arguments, **named)
        except DuologError as error:
            if WORKER in sys.modules and HIDE not in os.environ:
                error.__class__ = _shown(type(error))
                os.environ[HIDE] = "1"
            raise

    return cast(F, call)
