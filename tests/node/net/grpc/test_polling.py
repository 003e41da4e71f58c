"""How a node polls its channels: in one thread, by a name that the installed gRPC knows."""

import os
import subprocess
import sys

import pytest

from duolog_server.node.net.grpc import options

USE = "import grpc; grpc.insecure_channel('127.0.0.1:1').close()"
SET = "from duolog_server.node.net.grpc import options; options.poll_channels_in_one_thread()"


def said(program: str, **environment: str) -> str:
    """What a process writes that uses gRPC."""
    others = {name: value for name, value in os.environ.items() if name != options.VARIABLE}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**others, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout + found.stderr


def test_the_installed_grpc_knows_the_experiment_by_its_name() -> None:
    assert "Unknown experiment" in said(USE, **{options.VARIABLE: "-no_such_thing"})
    assert "Unknown experiment" not in said(f"{SET}; {USE}")


def test_what_the_environment_says_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.VARIABLE, "")
    options.poll_channels_in_one_thread()
    assert os.environ[options.VARIABLE] == ""
    monkeypatch.delenv(options.VARIABLE)
    options.poll_channels_in_one_thread()
    assert os.environ[options.VARIABLE] == options.CHANNELS_IN_ONE_THREAD
