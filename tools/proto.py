"""Generate the stubs of proto/ and their types, and those of RocketMQ's; with --check, compare.

The stubs of proto/ go to client/duolog/wire and node/wire, which is imported as
duolog_server.node.wire. RocketMQ's are Apache's package, which has no types: typings/ gets them,
made of the descriptors in the package. RocketMQ's Admin service is newer than that package:
proto/apache has its schema as Apache publishes it.
"""

import filecmp
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from grpc_types import GrpcTypes

from duolog_server.compat.grpc.protocol import stubs

ROOT = Path(__file__).parent.parent
APACHE = "rocketmq/grpc_protocol/"  # where the package has its stubs
# The package's schemas are named as if its folder was that of all modules.
IMPORT = "\nimport definition_pb2 as "
IMPORT_OF_PACKAGE = "\nfrom rocketmq.grpc_protocol import definition_pb2 as "
# Schemas are named after their folders, which are not what Python imports.
NODE, NODE_IMPORTED = "node.wire", "duolog_server.node.wire"
OF_NODE = ((f"\nfrom {NODE} ", f"\nfrom {NODE_IMPORTED} "), (f"'{NODE}.", f"'{NODE_IMPORTED}."))


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema under proto/. blocking: its service is called from threads, not awaited."""

    path: str
    root: Path  # of the package that its stubs belong to
    blocking: bool

    def generate(self, target: Path) -> None:
        """The stubs, and their types."""
        with tempfile.NamedTemporaryFile() as descriptors:
            run_protoc(
                f"-I{ROOT / 'proto'}",
                f"--python_out={target}",
                f"--pyi_out={target}",
                f"--grpc_python_out={target}",
                f"--descriptor_set_out={descriptors.name}",
                self.path,
            )
            files = FileDescriptorSet.FromString(Path(descriptors.name).read_bytes())
        write_types(files.file[0], target, blocking=self.blocking)


class RocketMQ:
    """The types of RocketMQ's stubs."""

    root = ROOT / "typings"

    def generate(self, target: Path) -> None:
        """The types alone."""
        files = FileDescriptorSet()
        for known in dict.fromkeys(_with_imports(stubs.service.DESCRIPTOR)):
            file = files.file.add()
            known.CopyToProto(file)
            file.name = _apache(file.name)
            file.dependency[:] = [_apache(name) for name in file.dependency]
        paths = [file.name for file in files.file if file.name.startswith(APACHE)]
        with tempfile.NamedTemporaryFile() as descriptors:
            Path(descriptors.name).write_bytes(files.SerializeToString())
            run_protoc(f"--descriptor_set_in={descriptors.name}", f"--pyi_out={target}", *paths)
        write_types(files.file[-1], target, blocking=False)


class RocketMQAdmin:
    """The stubs of RocketMQ's Admin service, and their types.

    They use the messages of Apache's package, where the schema's imports come from: two copies of
    one schema in a process would collide.
    """

    root = ROOT
    path = "apache/rocketmq/v2/admin.proto"
    imported = "apache/rocketmq/v2/definition.proto"
    made = "node/wire/rocketmqadmin.proto"

    def generate(self, target: Path) -> None:
        """The stubs and their types."""
        known = FileDescriptorSet()
        for file in dict.fromkeys(_with_imports(stubs.definition.DESCRIPTOR)):
            file.CopyToProto(known.file.add())
        of_package = known.file[-1].name
        with tempfile.NamedTemporaryFile() as imports, tempfile.NamedTemporaryFile() as found:
            known.file[-1].name = self.imported
            Path(imports.name).write_bytes(known.SerializeToString())
            run_protoc(
                f"--descriptor_set_in={imports.name}",
                f"-I{ROOT / 'proto'}",
                f"--descriptor_set_out={found.name}",
                self.path,
            )
            (admin,) = FileDescriptorSet.FromString(Path(found.name).read_bytes()).file
        known.file[-1].name = of_package
        admin.name = self.made
        admin.dependency[:] = [
            of_package if name == self.imported else name for name in admin.dependency
        ]
        known.file.append(admin)
        with tempfile.NamedTemporaryFile() as descriptors:
            Path(descriptors.name).write_bytes(known.SerializeToString())
            run_protoc(
                f"--descriptor_set_in={descriptors.name}",
                f"--python_out={target}",
                f"--pyi_out={target}",
                f"--grpc_python_out={target}",
                self.made,
            )
        for made in target.rglob("*_pb2.py*"):
            made.write_text(made.read_text().replace(IMPORT, IMPORT_OF_PACKAGE))
        write_types(admin, target, blocking=False)


def _with_imports(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """A schema after those that it imports."""
    for imported in file.dependencies:
        yield from _with_imports(imported)
    yield file


def _apache(name: str) -> str:
    """A schema's name as its module's place in the package."""
    return name if "/" in name else APACHE + name


SCHEMAS = (
    Schema("duolog/wire/duolog.proto", ROOT / "client", blocking=False),
    Schema("node/wire/etcd.proto", ROOT, blocking=True),
    Schema("node/wire/moves.proto", ROOT, blocking=False),
    Schema("node/wire/recovery.proto", ROOT, blocking=False),
    RocketMQ(),
    RocketMQAdmin(),
)


def run_protoc(*arguments: str) -> None:
    """Run protoc, and end where it fails."""
    status = protoc.main(["protoc", *arguments])
    if status:
        sys.exit(status)


def write_types(file: FileDescriptorProto, target: Path, *, blocking: bool) -> None:
    """Write a schema's _pb2_grpc.pyi."""
    text = GrpcTypes(file, blocking=blocking).text()
    (target / file.name.replace(".proto", "_pb2_grpc.pyi")).write_text(text)


def rename(made: Path) -> None:
    """Have a stub import others as Python finds them; names in the schema stay."""
    text = made.read_text()
    for of_folder, imported in OF_NODE:
        text = text.replace(of_folder, imported)
    made.write_text(text)


def compare(made: Path, kept: Path) -> None:
    """End where a file is not what was just made."""
    if not kept.exists() or not filecmp.cmp(made, kept, shallow=False):
        print(f"{kept} is not what its schema says: run make proto", file=sys.stderr)
        sys.exit(1)


def copy(made: Path, kept: Path) -> None:
    """Keep what was made."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made, kept)


def main() -> None:
    """Write, or compare."""
    settle = compare if "--check" in sys.argv else copy
    for schema in SCHEMAS:
        with tempfile.TemporaryDirectory() as directory:
            schema.generate(Path(directory))
            for made in sorted(Path(directory).rglob("*.py*")):
                rename(made)
                settle(made, schema.root / made.relative_to(directory))


if __name__ == "__main__":
    main()
