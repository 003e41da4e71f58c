"""The jobs as a user starts them: commands, wrong input, and a cluster of Spark's own."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duolog.sync
import pytest
from duolog.testing._ports import free_ports

from tests.pipeline.test_audit import fill, flip, records
from tests.process.support import ROOT, NodeProcess, run_cli
from tests.sparkfixtures import JAVA, JVM, need_java

pytestmark = [pytest.mark.spark, pytest.mark.process]

COMMAND_SECONDS = 300.0  # ten, on a machine that does nothing else: each starts Java
END_SECONDS = 60.0


def users() -> dict[str, str]:
    """The environment of a shell in which `. .venv/bin/activate` was said, and nothing else but how
    Java starts."""
    kept = {
        name: os.environ[name] for name in ("HOME", "JAVA_HOME", "TMPDIR") if name in os.environ
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, **JAVA, "PATH": path, "LANG": "C.UTF-8"}


def test_the_first_example_of_the_page_about_spark_runs_as_it_is(
    node: NodeProcess, tmp_path: Path
) -> None:
    need_java()
    page = (ROOT / "docs" / "spark.md").read_text()
    program, commands = re.findall(r"```(?:python|console)\n(.*?)```", page, re.DOTALL)[1:3]
    (tmp_path / "orders.py").write_text(program.replace("127.0.0.1:8081", node.endpoint))
    lines = [line.removeprefix("$ ") for line in commands.splitlines()]
    assert [line.split()[0] for line in lines] == [".", "duolog", "duolog", "seq", "python"]
    made = subprocess.run(
        ["bash", "-ec", "\n".join(lines[2:])],
        cwd=tmp_path,
        env={**users(), "DUOLOG_ENDPOINTS": node.endpoint},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    assert re.search(r"\| +new\| +1000\|", made.stdout), made.stdout


def test_a_closed_output_pipe_ends_a_command_quietly(tmp_path: Path) -> None:
    need_java()
    fill(tmp_path / "a", 200)
    commands = [
        f"duolog pipeline audit {tmp_path / 'a'} | true",
        f"duolog pipeline audit {tmp_path / 'a'} --json | head -c 5",
        "duolog config show | head -1",
        "duolog pipeline --help | true",
    ]
    for command in commands:
        made = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=users(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert "BrokenPipe" not in made.stderr, command
        assert "Traceback" not in made.stderr, command
        assert len(made.stdout) <= 5 or command.startswith("duolog config")


def test_an_error_of_spark_keeps_its_reason(tmp_path: Path, node: NodeProcess) -> None:
    need_java()
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 this is no Parquet file, though it is named so PAR1")
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"n": 1}\n{"n": "x\n')
    with duolog.sync.Client(node.endpoint) as client:
        client.admin.create_topic("reasons", 1)
    for path, topic, words in (
        (str(torn), "reasons", "torn.parquet"),
        (str(odd), "reasons", "odd.jsonl"),
        (str(odd), "nobody-made-this", "'nobody-made-this' does not exist"),
    ):
        arguments = ("replay", path, "--to", topic, "-e", node.endpoint, "--name", f"r-{len(path)}")
        made = run_cli("pipeline", *arguments, timeout=COMMAND_SECONDS)
        assert made.returncode == 1
        assert words in made.stderr, made.stderr
        assert "An error occurred while calling" not in made.stderr
        assert "Traceback" not in made.stderr, made.stderr


def test_commands_run_and_refuse_invalid_arguments(tmp_path: Path, node: NodeProcess) -> None:
    need_java()
    fill(tmp_path / "a", 200)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    made = run_cli("pipeline", "audit", str(tmp_path / "a"), "--json", timeout=COMMAND_SECONDS)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["records"] == 200
    offset, _ = records(tmp_path / "b")[3]
    flip(tmp_path / "b", offset + 40)
    both = ("audit", str(tmp_path / "a"), "--against", str(tmp_path / "b"))
    made = run_cli("pipeline", *both, timeout=COMMAND_SECONDS)
    assert made.returncode == 2
    assert f"the replicas differ from offset {offset:,}:" in made.stderr
    assert "corrupt" in made.stdout
    wrong = [
        (("audit", str(tmp_path / "none")), "no such directory"),
        (("rebuild", str(tmp_path)), "is not a store directory"),
        (("rebuild", str(tmp_path / "a"), "--index-entries", "1"), "at least 1 slot"),
        (("tier", str(tmp_path / "a"), "--out", str(tmp_path), "--compression", "rar"), "'rar'"),
        (("replay", "x.txt", "--to", "T", "-e", node.endpoint), "format is not one of"),
        (("report", "--out", str(tmp_path / "r"), "-e", "nonsense"), "is not HOST:PORT"),
    ]
    for arguments, words in wrong:
        made = run_cli("pipeline", *arguments, timeout=COMMAND_SECONDS)
        assert made.returncode == 1, arguments
        assert words in made.stderr
        assert "Traceback" not in made.stderr


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone master and two workers of Spark on loopback; the master's address."""
    need_java()
    import pyspark

    home = Path(pyspark.__file__).parent
    port, ui, *worker_ports = free_ports(4)
    environment = {**users(), "SPARK_LOCAL_IP": "127.0.0.1"}
    launch = [str(home / "bin" / "spark-class")]
    master = [*launch, "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1"]
    master += ["-p", str(port), "--webui-port", str(ui)]
    address = f"spark://127.0.0.1:{port}"
    worker = [*launch, "org.apache.spark.deploy.worker.Worker", "-h", "127.0.0.1", "-c", "1"]
    processes = []
    try:
        with (tmp_path / "spark.log").open("ab") as log:
            commands = [master]
            for k, web in enumerate(worker_ports):
                folder = ["-d", str(tmp_path / f"w{k}")]
                commands.append([*worker, "-m", "700m", "--webui-port", str(web), *folder, address])
            for command in commands:
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        end = time.monotonic() + 120
        while (tmp_path / "spark.log").read_text().count("Registering worker 127") < 2:
            assert time.monotonic() < end, (tmp_path / "spark.log").read_text()[-2000:]
            time.sleep(0.1)
        yield address
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_the_same_jobs_run_on_a_standalone_cluster_through_spark_submit(
    cluster: str, node: NodeProcess, tmp_path: Path
) -> None:
    fill(tmp_path / "a", 400)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {k}}}\n' for k in range(500)))
    environment = {**users(), "SPARK_LOCAL_IP": "127.0.0.1"}

    def submit(*arguments: str) -> str:
        command = ["spark-submit", "--master", cluster]
        command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
        command += ["--conf", f"spark.executor.extraJavaOptions={JVM}"]
        command += ["--conf", "spark.driver.host=127.0.0.1", str(ROOT / "cluster" / "submit.py")]
        made = subprocess.run(
            [*command, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert made.returncode == 0, made.stderr[-3000:]
        return made.stdout

    found = json.loads(submit("audit", str(tmp_path / "a"), "--json"))
    assert (found["records"], found["problems"]) == (400, [])
    with duolog.sync.Client(node.endpoint) as client:
        client.admin.create_topic("from-the-cluster", 2)
        submit(
            "replay", str(tmp_path / "rows.jsonl"), "--to", "from-the-cluster", "--body", "n",
            "-e", node.endpoint,
        )  # fmt: skip
        (topic,) = client.admin.topics(["from-the-cluster"])
        assert sum(stats.max_offset for stats in topic.stats) == 500


def test_the_flights_run_end_to_end_while_the_master_is_killed(tmp_path: Path) -> None:
    """Replay, stream, tier, report; the sums equal a plain loop over the file."""
    need_java()
    out = tmp_path / "out"
    made = run_cli("pipeline", "flights", "--json", "--out", str(out), timeout=800)
    assert made.returncode == 0, made.stderr[-3000:]
    facts = json.loads(made.stdout)
    assert facts["result"] == "19,434 sums over 328,521 flights: exact"
    assert "across the death of a master" in facts["streamed"]
    assert "<svg" in (out / "report.html").read_text()
