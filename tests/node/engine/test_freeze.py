"""A freeze: whose requests for tables count."""

from duolog_server.node.engine.freeze import TABLES, Freeze


def test_every_slave_that_follows_must_get_all_tables_and_others_need_not() -> None:
    freeze = Freeze()
    assert not freeze.has_given(0)
    freeze.answered("monitor", 0)
    for table in range(TABLES):
        freeze.answered("a", table)
        assert freeze.has_given(1) == (table == TABLES - 1)
    assert not freeze.has_given(2)
