"""Spark's errors in one line: its own message and the deepest cause.

Rules: an error of ours, or of Python code in a task, is the cause and stands alone; else Spark's
own words come first, and the deepest cause follows.
"""

import re
from typing import Any

CHARACTERS_MAX = 600
_OURS = ("duolog.", "duolog_server.")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([^\s].*)")
_CAUSED = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CALLING = "An error occurred while calling "
_FAILED = re.compile(r"^(?:\w+\.)*\w+: ((?:\[[\w.]+\] )?Job aborted due to stage failure: .*)$")
_LOST = re.compile(r"^Job aborted .*?most recent failure: Lost task [^:]*?: (.+)$")
_JAVA_KIND = re.compile(r"^(?:[a-z_]\w*\.)+([A-Z][\w$]*)(?:: |$)")
CAUSES_MAX = 20


def reason_of(error: BaseException) -> str:
    """The reason of an error, as text."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(_OURS)]
    if ours:
        head, separator, rest = ours[-1].partition(": ")
        return _cut(rest if separator and " " not in head else ours[-1])
    if python := _PYTHON.findall(text):
        return _cut(python[-1])
    said = _said(lines)
    cause = _deepest(error, text)
    if cause and cause not in said:
        said = f"{said}; caused by {cause}" if said else cause
    return _cut(said or type(error).__name__)


def _said(lines: list[str]) -> str:
    """Spark's own message, without the text of the layers above."""
    rest = [line.removeprefix(": ") for line in lines if not line.startswith(_CALLING)]
    if not rest:
        return ""
    first = rest[0]
    if failed := _FAILED.match(first):
        first = failed[1]
    if lost := _LOST.match(first):
        first = lost[1]
    return first


def _deepest(error: BaseException, text: str) -> str:
    """The last cause: from the text, otherwise from the JVM."""
    if found := _CAUSED.findall(text):
        return _plain(found[-1])
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    last = None
    try:
        for _ in range(CAUSES_MAX):
            following = java.getCause() if java is not None else None
            if following is None:
                break
            last = java = following
        return _plain(str(last.toString()).splitlines()[0]) if last is not None else ""
    except Exception:  # the JVM is gone: its text is all there is
        return ""


def _plain(cause: str) -> str:
    """A Java exception's kind and text, without its package."""
    return _JAVA_KIND.sub(lambda m: m[1] + (": " if m[0].endswith(": ") else ""), cause.strip())


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + "..."
