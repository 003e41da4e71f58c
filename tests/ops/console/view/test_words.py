"""Numbers and texts of the console."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.console.view.formatting import (
    command,
    counted,
    duration,
    latency,
    listed,
    moment,
    number,
    pause,
    rate,
    sentence,
    size,
    spaced,
    told_apart,
    visible,
)


def plain(text: str) -> str:
    return text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_sizes(value: int, shown: str) -> None:
    assert plain(size(value)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0/s"),
        (0.25, "0.2/s"),
        (12, "12/s"),
        (999.6, "1.0 k/s"),
        (84_100, "84.1 k/s"),
        (2e6, "2.0 M/s"),
    ],
)
def test_rates(value: float, shown: str) -> None:
    assert plain(rate(value)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0.0 s"),
        (400, "0.4 s"),
        (14_000, "14 s"),
        (300_000, "5 min"),
        (61 * 3_600_000, "61 h"),
        (12 * 86_400_000, "12 d"),
    ],
)
def test_durations(value: int, shown: str) -> None:
    assert plain(duration(value)) == shown


def test_words() -> None:
    assert plain(number(12_345)) == "12 345"
    assert [counted(1, "message"), counted(2, "entry")] == ["1 message", "2 entries"]
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert spaced("NoSuchMessage") == "No such message"
    assert [plain(pause(ms)) for ms in (0, 60, 900, 3_400)] == ["0 ms", "60 ms", "0.9 s", "3.4 s"]
    told = [plain(latency(seconds)) for seconds in (0, 0.00031, 0.0031, 0.031, 1.2)]
    assert told == ["0 ms", "0.31 ms", "3.1 ms", "31 ms", "1.2 s"]
    assert [sentence("there is none"), sentence("so.")] == ["there is none.", "so."]
    assert told_apart("x" + "абвгдежзийк").count("U+") == 8


@given(st.lists(st.text(min_size=1)))
def test_a_command_has_its_words_whatever_they_are(words: list[str]) -> None:
    if all(one.isprintable() or one in "\n\t" for word in words for one in word):
        assert shlex.split(command(*words)) == ["duolog", *words]
    assert all(one.isprintable() or one in "\n\t" for one in command(*words))


def test_a_shell_reads_the_words_of_a_command_and_obeys_none() -> None:
    flags = ["--to", "latest"]
    said = command("group", "reset", names=["g", "T"], flags=flags)
    assert said == "duolog group reset g T --to latest"
    key = "--endpoints=evil.example:8081"
    assert command("msg", "recall", names=["T", key]) == f"duolog msg recall -- T {key}"
    said = command("group", "reset", names=["-g", "T"], flags=flags)
    assert said == "duolog group reset --to latest -- -g T"
    words = [
        "k\x03\nrm x\n",
        "\x1b[201~",
        "a\u202eb",
        "it's \\ $HOME `id`\x7f",
        "\U000e0001",
        "a\nb",
    ]
    script = f"duolog() {{ printf '%s\\0' \"$@\"; }}; {command(*words)}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout.decode().split("\0") == [*words, ""]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("boss", "boss"),
        ("Jörg ß", "Jörg ß"),
        ("山田 taro", "山田 taro"),
        ("иван", "иван"),
        ("bоss", "bоss (о U+043E)"),
        ("аlιсе", "аlιсе (а U+0430, ι U+03B9, с U+0441, е U+0435)"),
        ("сοп", "сοп (с U+0441, ο U+03BF, п U+043F)"),
        ("x\ud800\ufdd0", "x\ud800\ufdd0"),
        ("", ""),
    ],
)
def test_letters_that_look_like_others_are_told(text: str, shown: str) -> None:
    assert told_apart(text) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (1_795_897_144_118, "2026-11-28 20:19:04.118 UTC"),
        (5, "1970-01-01 00:00:00.005 UTC"),
        (1 << 62, f"{1 << 62} ms since 1970"),
    ],
)
def test_a_time_is_readable_without_scripts(ms: int, shown: str) -> None:
    assert moment(ms) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc d", "a\tb\nc d"),
        ("\x1b[2J\x00\r", "⟨U+001B⟩[2J⟨U+0000⟩⟨U+000D⟩"),
        ("\x7f\x9b", "⟨U+007F⟩⟨U+009B⟩"),
        ("invoice\u202efdp.exe", "invoice⟨U+202E⟩fdp.exe"),
        ("order\u200b-1\ufeff", "order⟨U+200B⟩-1⟨U+FEFF⟩"),
        ("می\u200cخواهم 👨\u200d👩", "می\u200cخواهم 👨\u200d👩"),
        ("\U000e0041", "⟨U+E0041⟩"),
    ],
)
def test_what_is_not_seen_has_a_sign(text: str, shown: str) -> None:
    assert visible(text) == shown
