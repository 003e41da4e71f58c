"""Routes of a cluster: the combined answers of its groups."""

from types import SimpleNamespace
from typing import Any

import pytest
from duolog import _errors as sdk

from duolog_server.compat.grpc.protocol.codes import Refused, status
from duolog_server.compat.grpc.protocol.stubs import Code, service
from duolog_server.compat.grpc.routes import replies_of_groups
from tests.compat.grpc.api import LocalCall


class Others:
    """Groups beside this one, with what each answers."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def other_groups(self) -> list[str]:
        return sorted(self._answers)

    async def unary(self, kind: type, request: Any, context: Any, group: str, s: float) -> Any:
        answer = self._answers[group]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def answer_of(code: Code) -> Any:
    return SimpleNamespace(status=status(code))


async def routes_of(**answers: Any) -> list[Any]:
    def own() -> Any:
        raise sdk.UnknownTopic("topic 'T' does not exist")

    others: Any = Others(**answers)
    request, kind = service.QueryRouteRequest(), service.QueryRouteResponse
    return await replies_of_groups(others, kind, request, LocalCall(), own)


async def test_a_topic_is_unknown_only_where_no_group_failed_to_answer() -> None:
    unknown, found = answer_of(Code.TOPIC_NOT_FOUND), answer_of(Code.OK)
    with pytest.raises(sdk.UnknownTopic):
        await routes_of(b=unknown)
    with pytest.raises(sdk.NotMaster):
        await routes_of(b=unknown, c=sdk.NotMaster("group c has no master now"))
    with pytest.raises(Refused, match="HA_NOT_AVAILABLE"):
        await routes_of(b=answer_of(Code.HA_NOT_AVAILABLE), c=unknown)
    assert await routes_of(b=sdk.Unavailable("no answer"), c=found) == [found]
