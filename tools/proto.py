"""Generate the stubs of proto/ into client/duolog/wire; with --check, compare."""

import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
SCHEMA = "duolog/wire/duolog.proto"
MADE = ("duolog_pb2.py", "duolog_pb2.pyi", "duolog_pb2_grpc.py")


def generate(target: Path) -> None:
    """Run protoc."""
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            SCHEMA,
        ]
    )
    if status:
        sys.exit(status)


def main() -> None:
    """Write, or compare."""
    if "--check" not in sys.argv:
        generate(ROOT / "client")
        return
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        for name in MADE:
            made = Path(directory) / "duolog" / "wire" / name
            kept = ROOT / "client" / "duolog" / "wire" / name
            if not kept.exists() or not filecmp.cmp(made, kept, shallow=False):
                print(f"{kept} is not what proto/ says: run make proto", file=sys.stderr)
                sys.exit(1)


if __name__ == "__main__":
    main()
