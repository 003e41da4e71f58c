"""A program that does not end in time leaves what it printed."""

import subprocess

import pytest

from tests.late import told_where_late


@pytest.mark.parametrize("printed", ["the last word\n", b"the last word\n"])
def test_what_a_late_program_printed_last_is_told(printed: str | bytes) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late, told_where_late():
        raise subprocess.TimeoutExpired("one", 1, printed)
    assert late.value.__notes__ == ["stdout: ...the last word\n", "stderr: nothing"]
