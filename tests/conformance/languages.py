"""Programs in other languages with their clients: each is built once, and run by many tests."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bench.peers import maven
from bench.peers.maven import locked
from bench.peers.peer import Unavailable
from tests.late import told_where_late

PROGRAMS = Path(__file__).parent / "programs"
BUILT = Path(__file__).parent.parent.parent / "build" / "conformance"
# Of a program that lives for seconds: optimising it would cost more than it saves.
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Consumers of the classic client look for queues of theirs every 20 s, where nothing calls them.
SOON_BALANCED = "-Drocketmq.client.rebalance.waitInterval=1000"
JAVA_CLIENT = "org.apache.rocketmq:rocketmq-client-java:5.1.0"
GO_CLIENT = "github.com/apache/rocketmq-clients/golang/v5@v5.1.4"
GO_CLASSIC = "github.com/apache/rocketmq-client-go/v2@v2.1.2"
NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"
SPRING_STARTER = "org.apache.rocketmq:rocketmq-v5-client-spring-boot-starter:2.3.1"
RUST_CLIENT = """
[package]
name = "conformance"
version = "0.0.0"
edition = "2021"

[dependencies]
rocketmq = "=5.0.0"
time = { version = "0.3", features = ["local-offset"] } # which it needs, and does not ask for
tokio = { version = "1", features = ["macros", "rt-multi-thread", "time"] }

[profile.dev]
debug = 0
"""
# It takes minutes to compile: once on a machine, and not for each run.
RUST_HOME = Path.home() / ".cache" / "duolog" / "conformance-rust"
RUST_SECONDS = 900.0
PROGRAM_SECONDS = 240.0  # a round trip takes some 20, on a slow machine with many guests far more


def need(*tools: str) -> None:
    """Skip where a language is not installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def outcome(*command: str, **more: str) -> Any:
    """What a program printed."""
    with told_where_late():
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
            env={**os.environ, **more},
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# -- Java ------------------------------------------------------------------------------------------


def jars_of(name: str, *artifacts: str) -> Path:
    """A folder with these artifacts and all that they need; skips where they cannot be had."""
    try:
        return maven.jars(name, artifacts)
    except Unavailable as reason:
        pytest.skip(str(reason))


def java_with(jars: Path, home: Path, program: str, *options: str) -> list[str]:
    """The command that runs a program with a folder of jars. options: of Java."""
    need("java", "javac")
    path = f"{maven.compiled(PROGRAMS / program, jars)}:{jars}/*"
    name = program.removesuffix(".java")
    return ["java", *SHORT_LIVED, f"-Duser.home={home}", *options, "-cp", path, name]


def client_jars() -> Path:
    """Apache's client; skips where it cannot be had."""
    return jars_of("client-java", JAVA_CLIENT)


def starter_jars() -> Path:
    """The same of Apache's Spring Boot starter."""
    return jars_of("spring-starter", SPRING_STARTER)


def java(home: Path, program: str) -> list[str]:
    """The command that runs a program with Apache's client."""
    return java_with(client_jars(), home, program)


def spring(home: Path, program: str) -> list[str]:
    """The same with Apache's Spring Boot starter."""
    return java_with(starter_jars(), home, program)


# -- others ----------------------------------------------------------------------------------------


def go(home: Path, program: str) -> list[str]:
    """The same for Go."""
    need("go")
    source = PROGRAMS / program
    client = GO_CLASSIC if program == "classic.go" else GO_CLIENT
    folder = _folder("go", client, source.read_text())
    if not folder.exists():
        with TemporaryDirectory(prefix="go-", dir=BUILT) as parent:
            made = Path(parent) / "made"
            made.mkdir()
            shutil.copy(source, made / "main.go")
            fetch("go", "mod", "init", "conformance", cwd=made)
            fetch("go", "get", client, cwd=made)
            fetch("go", "build", "-o", "program", ".", cwd=made)
            _put(made, folder)
    return [str(folder / "program")]


def nodejs(home: Path, program: str) -> list[str]:
    """The same for Node.js."""
    need("node", "npm")
    folder = _folder("nodejs", NODE_CLIENT)
    if not folder.exists():
        with TemporaryDirectory(prefix="nodejs-", dir=BUILT) as parent:
            made = Path(parent) / "made"
            made.mkdir()
            (made / "package.json").write_text('{"private": true}')
            fetch("npm", "install", "--silent", "--no-audit", "--no-fund", NODE_CLIENT, cwd=made)
            _put(made, folder)
    return ["env", f"CLIENT_HOME={folder}", "node", str(PROGRAMS / program)]


def rust(home: Path, program: str) -> list[str]:
    """The same for Rust."""
    need("cargo")
    binaries = RUST_HOME / "src" / "bin"
    name = program.removesuffix(".rs")
    # Another test would write sources that are compiled, and a binary that is copied.
    with locked(RUST_HOME, RUST_SECONDS):
        binaries.mkdir(parents=True, exist_ok=True)
        (RUST_HOME / "Cargo.toml").write_text(RUST_CLIENT)
        shutil.copy(PROGRAMS / program, binaries)
        fetch("cargo", "build", "--quiet", "--bin", name, cwd=RUST_HOME, timeout=RUST_SECONDS)
        return [str(shutil.copy(RUST_HOME / "target" / "debug" / name, home))]


def fetch(*command: str, cwd: Path, timeout: float = 300) -> None:
    """Get a client from its registry, or build with it."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def _folder(language: str, *contents: str) -> Path:
    """Where that is which is built of these."""
    BUILT.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join(contents).encode()).hexdigest()[:12]
    return BUILT / f"{language}-{digest}"


def _put(made: Path, folder: Path) -> None:
    """Give a folder its name, unless another process did that meanwhile."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise
