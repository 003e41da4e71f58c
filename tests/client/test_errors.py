"""The errors of the SDK, and handlers of Python's own classes that they are of."""

import ast
from collections.abc import Iterator
from pathlib import Path

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _errors

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("client/duolog", "ops", "pipeline", "cluster", "bench", "demo")  # they use the SDK
PYTHONS = {"OSError", "TimeoutError", "EnvironmentError", "IOError"}
OURS = {"DuologError", "Retryable", "Timeout"}
# They wait for no call of a client, or mean duolog's Timeout, too: file, and function.
EXEMPT = {
    ("client/duolog/_ways.py", "begin_later"),
    ("client/duolog/_batcher.py", "_lingered"),
    ("client/duolog/_connection.py", "_greet"),
    ("client/duolog/_connection.py", "settled"),
    ("client/duolog/_consumer.py", "_next"),
    ("client/duolog/_frameschannel.py", "ask"),
    ("client/duolog/_membership.py", "commit"),
    ("client/duolog/_producer.py", "close"),
    ("client/duolog/_sending.py", "_try"),
    ("ops/cli/migrateafter.py", "carry"),
}


def test_every_error_that_the_sdk_raises_derives_from_its_base() -> None:
    kinds = [one for one in vars(duolog).values() if isinstance(one, type)]
    errors = [one for one in kinds if issubclass(one, BaseException)]
    assert len(errors) > 20
    assert all(issubclass(one, duolog.DuologError) for one in errors)


def test_a_timeout_is_pythons_timeout_error_and_says_the_same() -> None:
    with pytest.raises(TimeoutError, match="no answer") as caught:
        raise duolog.Timeout("no answer within 3 s")
    error = caught.value
    assert isinstance(error, duolog.Retryable)
    assert str(error) == "no answer within 3 s"
    assert _errors.status_of(error)[1] == "Timeout"


def test_a_name_that_this_version_does_not_know_leaves_the_status_code() -> None:
    """Nodes of a later version, and proxies, add what they like."""
    trailing = grpc.aio.Metadata(("x-proxy", "NotMaster"), (_errors.ERROR_KEY, "OfTomorrow"))
    code = grpc.StatusCode.PERMISSION_DENIED
    found = _errors.error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, "no"))
    assert (type(found), str(found)) == (duolog.NoPermission, "no")


def names(kind: ast.expr | None) -> set[str]:
    """Classes that a handler names, without their modules."""
    found = ast.walk(kind) if kind is not None else ()
    return {getattr(one, "attr", getattr(one, "id", "")) for one in found}


def swallowing(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Handlers that catch a Timeout of duolog's as one of Python's, around something awaited."""
    for node in ast.walk(function):
        if isinstance(node, ast.Try):
            before: set[str] = set()
            for handler in node.handlers:
                caught = names(handler.type)
                if caught & PYTHONS and not (caught | before) & OURS:
                    yield from (node for part in node.body if awaits(part))
                before |= caught
        elif isinstance(node, ast.With):
            for item in node.items:
                if names(item.context_expr) >= {"suppress"} and names(item.context_expr) & PYTHONS:
                    yield from (node for part in node.body if awaits(part))


def awaits(part: ast.AST) -> bool:
    return any(isinstance(one, ast.Await | ast.AsyncWith | ast.AsyncFor) for one in ast.walk(part))


def test_no_handler_takes_a_timeout_of_duologs_for_one_of_pythons_by_accident() -> None:
    found: set[tuple[str, str]] = set()
    for folder in PROGRAMS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.AsyncFunctionDef) and any(swallowing(node)):
                    found.add((str(file.relative_to(ROOT)), node.name))
    assert found == EXEMPT


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (duolog.ResultUnknown, {"status": "FLUSH_SLAVE_TIMEOUT"}),
        (duolog.NotMaster, {"endpoint": "other:1", "epoch": 7, "master_away": True}),
        (duolog.Throttled, {"retry_after_ms": 9}),
    ],
)
def test_what_a_node_says_of_an_error_is_read_from_where_grpc_has_it(
    raised: type[duolog.DuologError], said: dict[str, object]
) -> None:
    code, name = _errors.status_of(raised("no"))
    trailing = grpc.aio.Metadata(
        (_errors.ERROR_KEY, name),
        (_errors.STATUS_KEY, "FLUSH_SLAVE_TIMEOUT"),
        (_errors.MASTER_KEY, "other:1"),
        (_errors.EPOCH_KEY, "7"),
        (_errors.AWAY_KEY, "1"),
        (_errors.RETRY_KEY, "9"),
    )
    found = _errors.error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, "no"))
    assert type(found) is raised
    assert {key: getattr(found, key) for key in said} == said
