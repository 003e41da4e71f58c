"""The commands that pages name, as the command line would take them."""

import itertools
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from duolog_server.ops.cli.main import app
from tests.documented import blocks


def words_of(line: str) -> list[list[str]]:
    """The words of each `duolog` command in a line, pipes, lists and redirections apart."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    parts = itertools.groupby(words, lambda word: not set(word) - set("|&;<>()"))
    found = [[word for word in part if word != "…"] for apart, part in parts if not apart]
    return [command for command in found if command[:1] == ["duolog"]]


def commands_of(page: Path) -> list[list[str]]:
    """The words of each `duolog` command in the console blocks of a page."""
    lines = [one.line for block in blocks(page, "console") for one in block.commands()]
    return [words for line in lines for words in words_of(line)]


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise what the command line would refuse; run nothing."""
    monkeypatch.setattr(sys, "argv", words)  # by which it imports only the noun that is named
    found: Any = typer.main.get_command(app)
    name, *rest = words
    context = None
    try:
        while True:
            context = found.make_context(name, rest, parent=context)
            if not hasattr(found, "resolve_command"):
                return
            name, found, rest = found.resolve_command(
                context, [*context._protected_args, *context.args]
            )
    except typer.Exit:
        assert {"--help", "--context", "--password-file"} & set(words)  # not of this machine
