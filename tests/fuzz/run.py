"""Coverage-guided fuzzing with atheris: `run.py [SECONDS]` runs every target in a child process.

The kernels run as plain Python (NUMBA_DISABLE_JIT), so that the fuzzer sees their branches.

New inputs go to tests/fuzz/corpus/<target>; a crash is left as a file there and ends the run.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))


def fuzz(name: str, seconds: str) -> None:
    """Fuzz one target in this process."""
    import atheris

    with atheris.instrument_imports(
        include=[
            "duolog",
            "duolog_server.ha",
            "duolog_server.node.net.frames",
            "duolog_server.node.metrics.endpoint",
            "duolog_server.store",
        ],
        enable_loader_override=False,
    ):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_corpus import seeds

    corpus = HERE / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={seconds}",
        "-max_len=4096",
        f"-artifact_prefix={corpus}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup(arguments, TARGETS[name])
    atheris.Fuzz()


def main() -> None:
    """Run all targets, or the one named."""
    if len(sys.argv) > 2:
        fuzz(sys.argv[1], sys.argv[2])
        return
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    from tests.fuzz.targets import TARGETS

    for name in TARGETS:
        print(f"fuzzing {name} for {seconds} s", flush=True)
        subprocess.run(
            [sys.executable, __file__, name, seconds],
            check=True,
            cwd=ROOT,
            env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        )


if __name__ == "__main__":
    main()
