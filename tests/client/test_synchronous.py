"""The synchronous client: errors at its end, and its use in a forked process."""

import asyncio
import atexit
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import duolog
import duolog.sync
import pytest
from duolog import sync
from duolog._receipts import Part


def test_closing_the_synchronous_client_reports_a_failed_message() -> None:
    async def refuse(batch: Any, seconds: float) -> list[Part]:
        raise duolog.Unavailable("no node")

    def post(client: duolog.sync.Client) -> None:
        producer = client.producer()
        producer._of._sender.send = refuse  # type: ignore[method-assign]
        producer.post("T", b"x")

    client = duolog.sync.Client("127.0.0.1:1", timeout=20)
    post(client)
    with pytest.raises(duolog.Unavailable, match="no node"):
        client.close()
    client.close()  # again: nothing is left to tell
    with pytest.raises(KeyError), duolog.sync.Client("127.0.0.1:1", timeout=20) as client:
        post(client)
        raise KeyError


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_gets_an_error_from_its_parents_client() -> None:
    with duolog.sync.Client("127.0.0.1:1", timeout=0.2) as client:
        producer = client.producer()
        child = os.fork()
        if child == 0:
            os._exit(_refusals_in_a_child(client, producer))
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                ended = os.waitpid(child, 0)
                break
            time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0


def _refusals_in_a_child(client: duolog.sync.Client, producer: duolog.sync.Producer) -> int:
    """How many calls did anything but to refuse."""
    wrong = 0
    for call in (
        lambda: producer.post("T", b"x"),
        lambda: producer.post("T", b"x", key="k"),
        lambda: producer.send("T", b"x"),
        producer.flush,
        lambda: client.admin.topics(),
    ):
        try:
            call()
        except duolog.WrongProcess as error:
            wrong += "spawn" not in str(error)
        except BaseException:
            wrong += 1
        else:
            wrong += 1
    producer.close()
    client.close()
    return wrong


def in_a_program(text: str) -> str:
    """What a program of its own prints; it has to end."""
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_a_client_closed_at_interpreter_exit_does_not_block_the_exit() -> None:
    told = in_a_program(
        "import duolog.sync\n"
        "class Log:\n"
        "    def __init__(self):\n"
        "        self.client = duolog.sync.Client('127.0.0.1:1', timeout=0.2)\n"
        "        self.producer = self.client.producer()\n"
        "    def __del__(self):\n"
        "        self.producer.close()\n"
        "def posts():\n"
        "    with duolog.sync.Client('127.0.0.1:1', timeout=0.2) as client:\n"
        "        while True:\n"
        "            yield client\n"
        "log, posting = Log(), posts()\n"
        "next(posting)\n"
    )
    assert told.count("the interpreter is ending") == 2


def test_a_callback_that_raises_system_exit_leaves_the_client_running() -> None:
    async def store(batch: Any, seconds: float) -> list[Part]:
        return [Part(batch.topic, 0, batch.first, batch.count, 0, 0, 0, "PUT_OK")]

    def leave(posted: duolog.sync.Posted) -> None:
        sys.exit(1)

    with duolog.sync.Client("127.0.0.1:1", timeout=5) as client:
        producer = client.producer()
        producer._of._sender.send = store  # type: ignore[method-assign]
        posted = producer.post("T", b"1", on_done=leave)
        assert posted.receipt(timeout=5).status == "PUT_OK"
        assert producer._loop._thread.is_alive()
        assert producer.post("T", b"2").receipt(timeout=5).status == "PUT_OK"


PROGRAM_THAT_ENDS = """
import asyncio, sys
import duolog.sync
from duolog._receipts import Part

duolog.sync.END_SECONDS = 0.5

async def send(batch, seconds):
    if batch.topic != "late":
        await asyncio.get_running_loop().getaddrinfo("localhost", 1)  # executors still run
    if batch.topic == "stuck":
        await asyncio.Event().wait()
    if batch.topic == "refused":
        raise duolog.Unavailable("no node")
    print("sent", batch.count)
    return [Part(batch.topic, 0, batch.first, batch.count, 0, 0, 0, "PUT_OK")]

def producer():
    producer = duolog.sync.Client("127.0.0.1:1").producer(linger=60)
    producer._of._sender.send = send
    return producer

def post(topic, on_done=None):
    made = producer()
    for _ in range(100):
        made.post(topic, b"x", on_done=on_done)
    return made
"""


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("T", "sent 100\n"),
        ("refused", "duolog: a posted message is not known to be stored: no node (100 messages"),
        ("stuck", "duolog: 100 posted messages have no answer, and may not be stored"),
    ],
)
def test_a_program_that_ends_sends_what_it_posted_or_says_what_is_lost(
    topic: str, said: str
) -> None:
    assert said in in_a_program(f"{PROGRAM_THAT_ENDS}\npost({topic!r})\n")


def test_a_program_ends_although_a_callback_waits_for_what_will_not_come() -> None:
    told = in_a_program(
        f"{PROGRAM_THAT_ENDS}\n"
        "import threading\n"
        "duolog.sync.SOON_SECONDS = 0.1\n"
        "made = post('T', lambda posted: threading.Event().wait())\n"
        "made.post('T', b'x', queue_id=0)\n"
        "made.flush_soon = made._loop.start(made._of.flush())\n"
    )
    assert "1 posted messages have no answer" in told


def test_a_thread_that_runs_on_gets_its_errors_and_sends_what_it_posted() -> None:
    told = in_a_program(
        f"{PROGRAM_THAT_ENDS}\n"
        "import threading\n"
        "duolog.sync.END_SECONDS = 30\n"
        "def work(made):\n"
        "    threading.main_thread().join()\n"
        "    made.post('stuck', b'x', timeout=0.1)\n"
        "    try:\n"
        "        made.close()\n"
        "    except duolog.DuologError as error:\n"
        "        print('caught', error)\n"
        "    post('late')\n"
        "made = post('refused')\n"
        "threading.Thread(target=work, args=[made]).start()\n"
    )
    assert told == "caught no node\nsent 100\n"


def test_an_asynchronous_producer_warns_where_messages_go_with_it() -> None:
    async def post(close: bool) -> None:
        client = duolog.Client("127.0.0.1:1", timeout=0.1 if close else 600)
        client.producer().post("T", b"x")
        if close:
            with pytest.raises(duolog.DuologError):  # not sent, or unknown on a slow machine
                await client.close()

    def run(*, close: bool) -> None:
        asyncio.run(post(close))
        gc.collect()

    with pytest.warns(ResourceWarning, match="collected with 1 posted messages"):
        run(close=False)
    run(close=True)


class Posts:
    """A producer at the end of its program. answers: whether what was posted gets its answers."""

    def __init__(self, unanswered: int, answers: bool = True, error: Exception | None = None):
        self.unanswered = unanswered
        self._answers = answers
        self._error = error
        self.waited = 0

    async def answered(self) -> None:
        self.waited += 1
        if not self._answers:
            await asyncio.Event().wait()
        self.unanswered = 0

    def raise_unasked(self) -> None:
        if self._error is not None:
            raise self._error


class Ending:
    """The end of a program. registered: what is to run after its other threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registered: list[tuple[Any, ...]] = []
        self.producers: set[Any] = set()
        self.loop = sync._Thread.running().loop
        self.threads = [threading.current_thread(), SimpleNamespace(daemon=True)]
        running = SimpleNamespace(loop=self.loop, batchers=self.producers)
        monkeypatch.setattr(sync._Thread, "_running", running)
        monkeypatch.setattr(threading, "enumerate", lambda: self.threads)
        monkeypatch.setattr(atexit, "register", lambda *what: self.registered.append(what))


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(monkeypatch)


def test_the_end_waits_for_answers_and_says_what_is_lost(
    ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    error = duolog.Unavailable("no node")
    error.add_note("and 2 more")
    late, done, failed = Posts(2), Posts(0), Posts(0, error=error)
    ending.producers |= {late, done, failed}
    sync._finish()
    said = "duolog: a posted message is not known to be stored: no node (and 2 more)\n"
    assert capsys.readouterr().err == said
    assert ([each.waited for each in (late, done, failed)], ending.registered) == ([1, 0, 0], [])


@pytest.mark.parametrize("answers", [True, False])
def test_what_is_lost_is_said_after_the_other_threads_of_the_program(
    ending: Ending,
    answers: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sync, "END_SECONDS", 20.0 if answers else 0.01)
    ending.threads.append(SimpleNamespace(daemon=False))
    ending.producers.add(Posts(3, answers))
    sync._finish()
    again = [(sync._at_the_end, sync._answered, 20.0)] if answers else []
    assert ending.registered == [(sync._say_lost,), *again], "the last one runs first"
    assert capsys.readouterr().err == ""
    sync._say_lost()
    said = "duolog: 3 posted messages have no answer, and may not be stored: close the producer\n"
    assert capsys.readouterr().err == ("" if answers else said)


def test_a_program_without_clients_ends_at_once(
    ending: Ending, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sync._Thread, "_running", None)
    sync._finish()
    assert (capsys.readouterr().err, ending.registered) == ("", [])


@pytest.mark.parametrize(
    ("error", "reported"), [(KeyError("a bug"), True), (KeyboardInterrupt(), False)]
)
def test_nothing_that_fails_at_the_end_keeps_a_program_from_ending(
    ending: Ending,
    error: BaseException,
    reported: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    waited: list[float] = []

    class Failing:
        def result(self, seconds: float) -> None:
            waited.append(seconds)
            raise error

    def start(work: Any, loop: object) -> Failing:
        work.close()
        return Failing()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", start)
    assert sync._at_the_end(sync._answered, 5.0) is None
    assert waited == [5.0 + sync.SOON_SECONDS], "the loop ends the wait where it can"
    assert ("a background task failed" in caplog.text) is reported


def test_what_is_lost_is_said_also_where_a_callback_waits(
    ending: Ending, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sync, "SOON_SECONDS", 0.01)
    ending.producers.add(Posts(1))
    waits, release = threading.Event(), threading.Event()

    def callback() -> None:
        waits.set()
        release.wait(20)

    ending.loop.call_soon_threadsafe(callback)
    try:
        assert waits.wait(20)
        sync._say_lost()
        assert "duolog: 1 posted messages have no answer" in capsys.readouterr().err
        monkeypatch.setattr(sys, "stderr", None)  # as in a program without a terminal
        sync._say_lost()
    finally:
        release.set()


def test_a_call_that_is_refused_is_not_left_open() -> None:
    """Python warns of a coroutine that nobody awaits."""

    async def work() -> None:
        raise AssertionError("it does not run")

    loop = sync._Loop()
    for ends, error in ((loop.stop, duolog.Unavailable), (loop.note_fork, duolog.WrongProcess)):
        ends()
        call = work()
        with pytest.raises(error):
            loop.start(call)
        assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED


@pytest.mark.parametrize("ended", ["stop", "note_fork"])
def test_a_consumer_that_has_ended_gives_no_message_that_it_had_at_hand(ended: str) -> None:
    """In a child the parent gives it to its program, too."""
    loop = sync._Loop()

    async def get(timeout: float | None = None) -> None:
        raise AssertionError("it does not run")

    consumer = sync.Consumer(
        loop, cast(Any, SimpleNamespace(_at_hand=iter([b"x"]), get=get, processing=None))
    )
    getattr(loop, ended)()
    with pytest.raises((duolog.Unavailable, duolog.WrongProcess)):
        consumer.get()


def test_calls_of_loops_that_their_programs_closed_are_not_reported() -> None:
    """gRPC tells the thread of all clients of them, too."""
    reported: list[object] = []
    loop: Any = SimpleNamespace(default_exception_handler=reported.append)
    contexts: list[dict[str, Any]] = [
        {"exception": RuntimeError("Event loop is closed")},
        {"exception": RuntimeError("another")},
        {"exception": ValueError("Event loop is closed")},
        {"message": "a task was destroyed"},
    ]
    for context in contexts:
        sync._Thread._report(loop, context)
    assert reported == contexts[1:]


def test_a_block_of_the_synchronous_client_hands_its_error_on_once() -> None:
    left: list[object] = []

    class Block:
        async def __aenter__(self) -> int:
            return 7

        async def __aexit__(self, kind: object, error: object, trace: object) -> None:
            left.append(error)

    loop: Any = SimpleNamespace(run=asyncio.run)
    face: Any = SimpleNamespace(_of=None, _loop=loop)
    within = sync._within(lambda _: Block())
    with within(face) as entered:
        assert entered == 7
    error = KeyError("its own")
    with pytest.raises(KeyError), within(face):
        raise error
    assert left == [None, error]
