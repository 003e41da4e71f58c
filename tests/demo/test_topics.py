"""A topic made while a cluster takes no changes yet."""

from types import SimpleNamespace

import duolog
import pytest

from duolog_server.demo import topics


class Admin:
    """Answers as it was told to, then makes topics."""

    def __init__(self, *answers: duolog.DuologError) -> None:
        self.answers = list(answers)
        self.made: list[tuple[str, int]] = []

    async def create_topic(self, topic: str, queues: int) -> None:
        """As a client's does."""
        if self.answers:
            raise self.answers.pop(0)
        self.made.append((topic, queues))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "RETRY_SECONDS", 0)


async def made_by(admin: Admin, seconds: float = 30.0) -> list[tuple[str, int]]:
    await topics.create_topic(SimpleNamespace(admin=admin), "T", 4, seconds)  # type: ignore[arg-type]
    return admin.made


async def test_a_topic_is_made_once_the_group_takes_it_and_errors_are_raised() -> None:
    assert await made_by(Admin(duolog.Busy("formed"), duolog.Busy("formed"))) == [("T", 4)]
    assert await made_by(Admin(duolog.TopicExists("T"))) == []
    with pytest.raises(duolog.BadRequest):
        await made_by(Admin(duolog.BadRequest("a name")))
    with pytest.raises(duolog.Busy, match="formed"):
        await made_by(Admin(duolog.Busy("formed"), duolog.Busy("again")), seconds=-1)
