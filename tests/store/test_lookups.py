"""Messages by key where many others have the same hash in the index, or a word of the key."""

import pytest

from duolog_server.store.lookups import WORDS_MAX
from duolog_server.store.messagestore import MessageStore
from tests.support import put


def keyed(key: str, one: bool = False) -> list[bytes]:
    text = f"KEYS\x01{key}\x02" + ("ONE_KEY\x01true\x02" if one else "")
    return [text.encode()]


def found(store: MessageStore, key: str, count: int) -> list[bytes]:
    return [record.body for record in store.lookups.by_key("T", key, count)]


def test_a_key_is_found_behind_many_others_of_its_hash(store: MessageStore) -> None:
    put(store, [b"first"], properties=keyed("Aa"))
    for _ in range(150):
        put(store, [b"other"], properties=keyed("BB"))  # the same hash
    put(store, [b"last"], properties=keyed("Aa"))
    assert found(store, "Aa", 2) == [b"first", b"last"]
    assert found(store, "Aa", 1) == [b"last"]


def test_a_key_with_spaces_is_found_by_its_rarest_word(store: MessageStore) -> None:
    for number in range(150):
        put(store, [b"%d" % number], properties=keyed(f"order {number} ", one=True))
    assert found(store, "order 3 ", 1) == [b"3"]
    assert found(store, "order", 1) == []


def test_a_key_of_many_words_takes_few_looks_into_the_index(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, looks, find = " ".join(map(str, range(10_000))), list[str](), store.index.find

    def counted(topic: str, word: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
        looks.append(word)
        return find(topic, word, count, begin_ms, end_ms)

    monkeypatch.setattr(store.index, "find", counted)
    assert found(store, key, 1) == []
    assert len(looks) == WORDS_MAX
