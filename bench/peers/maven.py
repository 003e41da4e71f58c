"""Java programs from Maven Central: a folder of jars for each set of artifacts, made once."""

import fcntl
import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers.peer import Unavailable

HOME = Path(__file__).parent.parent.parent / "build" / "peers"
FETCH_SECONDS = 600
COMPILE_SECONDS = 120
LOCK_SECONDS = FETCH_SECONDS + 60.0
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>duolog.bench</groupId><artifactId>peer</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def need(*tools: str) -> None:
    """Raises Unavailable where one of the programs is not installed."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise Unavailable(f"`{tool}` is not installed")


def pom(artifacts: Sequence[str]) -> str:
    """A project that depends on GROUP:ARTIFACT:VERSION and on what those depend on."""
    rows = [DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts]
    return POM.format(dependencies="\n".join(rows))


def jars(name: str, artifacts: Sequence[str]) -> Path:
    """The folder with these artifacts and all that they need. Raises Unavailable."""
    folder = HOME / name
    if (folder / "complete").exists():
        return folder
    need("java", "mvn")
    with alone():
        if not (folder / "complete").exists():
            _fetch(folder, artifacts)
    return folder


def alone() -> AbstractContextManager[None]:
    """Hold the lock of Maven: processes that fetch at once damage what it keeps in ~/.m2.

    Raises TimeoutError.
    """
    return locked(HOME / "maven", LOCK_SECONDS)


def _fetch(folder: Path, artifacts: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with TemporaryDirectory(prefix=f"{folder.name}-", dir=HOME) as parent:
        made = Path(parent) / "jars"
        made.mkdir()
        (made / "pom.xml").write_text(pom(artifacts))
        _run(
            ["mvn", "-q", "-B", "-f", str(made / "pom.xml"), PLUGIN, f"-DoutputDirectory={made}"],
            FETCH_SECONDS,
            f"Maven could not download {', '.join(artifacts)}",
        )
        (made / "complete").touch()
        made.rename(folder)


def compiled(source: Path, jars: Path) -> Path:
    """The folder with the classes of one source file, compiled against a folder of jars.

    It is made once for each content of the file. Raises Unavailable.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    target = jars / "classes" / f"{source.stem}-{digest}"
    if not target.exists():
        need("javac")
        target.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as parent:
            made = Path(parent) / "classes"
            command = ["javac", "-nowarn", "-proc:none", "-cp", f"{jars}/*", "-d", str(made)]
            failure = f"javac could not compile {source.name}"
            _run([*command, str(source)], COMPILE_SECONDS, failure)
            try:
                made.rename(target)
            except OSError:  # another process was quicker
                if not target.exists():
                    raise
    return target


def java_version() -> str:
    """As `java` says it. Raises Unavailable."""
    need("java")
    found = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return found.stderr.partition("\n")[0]


def _run(command: Sequence[str], seconds: float, failure: str) -> None:
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{failure} within {seconds:g} s") from None
    if found.returncode:
        lines = (found.stdout + found.stderr).strip().splitlines() or [""]
        raise Unavailable(f"{failure}: {lines[0][:300]}")


# A lock of a place: of several processes that would make the same thing there, one does.
POLL_SECONDS = 0.1


@contextmanager
def locked(place: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a place, which is a file beside it; it ends with the process, too.

    Raises TimeoutError where another process holds it for so long.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with place.with_name(f"{place.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"another process has been making {place} for {seconds:g} s"
                    ) from None
                time.sleep(POLL_SECONDS)
        yield
