"""The SDK's public face, and its pure parts."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duolog
from duolog import _columns
from duolog._errors import DuologError, status_of

CLIENT = Path(__file__).parent.parent.parent / "client"


def test_all_is_what_the_package_shows() -> None:
    shown = {name for name in vars(duolog) if not name.startswith("_")}
    modules = {name for name in shown if type(getattr(duolog, name)).__name__ == "module"}
    assert shown - modules == set(duolog.__all__)


def test_every_error_has_a_status_and_a_name_of_its_own() -> None:
    kinds = [
        getattr(duolog, name)
        for name in duolog.__all__
        if isinstance(getattr(duolog, name), type)
        and issubclass(getattr(duolog, name), DuologError)
    ]
    leaves = [kind for kind in kinds if kind not in (DuologError, duolog.Retryable, duolog.Fatal)]
    assert len({status_of(kind("x"))[1] for kind in leaves}) == len(leaves)


def test_the_sdk_imports_nothing_but_grpc_and_protobuf() -> None:
    code = (
        "import sys, duolog, duolog.sync; "
        "bad = {'numpy', 'numba', 'store', 'node', 'pydantic', 'typer', 'rich'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CLIENT, check=True)


@given(st.lists(st.binary(max_size=20), max_size=30))
def test_packed_values_come_apart_again(values: list[bytes]) -> None:
    blob, offsets = _columns.pack(values)
    numbers = _columns.unpack_numbers(offsets, "I")
    assert [blob[a:b] for a, b in zip(numbers, numbers[1:], strict=False)] == values


@given(st.binary(max_size=9), st.integers(1, 20))
def test_a_repeated_value_packs_like_a_list_of_it(value: bytes, count: int) -> None:
    if value:
        assert _columns.repeat(value, count) == _columns.pack([value] * count)
    else:
        assert _columns.repeat(value, count) == (b"", b"")


_texts = st.text(st.characters(min_codepoint=32, blacklist_categories=["Cs", "Cc"]), min_size=1)


@given(st.dictionaries(_texts.filter(lambda t: t not in _columns.RESERVED), _texts, max_size=4))
def test_property_texts_come_apart_again(properties: dict[str, str]) -> None:
    text = _columns.property_text("tag", ["k1", "k2"], properties)
    expected = {**properties, "TAGS": "tag", "KEYS": "k1 k2"}
    assert _columns.parse_properties(text) == expected


@pytest.mark.parametrize("keys", [[""], ["a b"]])
def test_keys_with_spaces_are_refused(keys: list[str]) -> None:
    with pytest.raises(duolog.BadRequest):
        _columns.property_text(None, keys, None)
