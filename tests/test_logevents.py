"""Events of the log are literals with one level, known fields and a meaning."""

from pathlib import Path

import pytest

from tools import log_reference
from tools.log_reference import checked, events


def test_every_event_of_the_node_is_documented() -> None:
    told = checked(events())
    assert len(told) > 50
    assert told["append refused"].level == told["call refused"].level == "warning", "or debug"
    assert "debug" not in {event.level for event in told.values()}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('log.info("ready " + name)', "a.py:1: an event is a literal"),
        ("log.info()", "a.py:1: an event is a literal"),
        ('log.info("ready", colour=1)', "does not know the fields"),
        ('log.info("ready", **more)', "does not know the fields"),
        ('log.info("ready")\nlog.error("ready")', "a.py:2: 'ready' is another event at .*a.py:1"),
        ('log.info("ready")\nlog.info("ready", data=1)', "is another event"),
        ('log.info("never seen")', "log_events.toml and the code differ in"),
        ("", "log_events.toml and the code differ in"),
    ],
)
def test_what_breaks_a_rule_is_told(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(code)
    monkeypatch.setattr(log_reference, "FOLDERS", (tmp_path,))
    with pytest.raises(ValueError, match=why):
        checked(events())
