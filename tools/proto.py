"""Generate the stubs of proto/ into client/duolog/wire and node/wire; with --check, compare."""

import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
# Schema under proto/, and the root of the package its stubs belong to.
SCHEMAS = (
    ("duolog/wire/duolog.proto", ROOT / "client"),
    ("node/wire/etcd.proto", ROOT),
)
MADE = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(schema: str, target: Path) -> None:
    """Run protoc."""
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            schema,
        ]
    )
    if status:
        sys.exit(status)


def main() -> None:
    """Write, or compare."""
    for schema, root in SCHEMAS:
        if "--check" not in sys.argv:
            generate(schema, root)
            continue
        with tempfile.TemporaryDirectory() as directory:
            generate(schema, Path(directory))
            for ending in MADE:
                name = schema.removesuffix(".proto") + ending
                kept = root / name
                if not kept.exists() or not filecmp.cmp(
                    Path(directory) / name, kept, shallow=False
                ):
                    print(f"{kept} is not what proto/ says: run make proto", file=sys.stderr)
                    sys.exit(1)


if __name__ == "__main__":
    main()
