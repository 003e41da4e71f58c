"""The manifests of cluster/kubernetes as a kubelet sees them: containers with their environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent.parent.parent / "cluster" / "kubernetes"
NAMESPACE = "messages"


def documents() -> list[dict[str, Any]]:
    """All objects, by their files' order, but for those that kustomize makes."""
    files = sorted(path for path in FOLDER.rglob("*.yaml") if path.stem != "kustomization")
    return [one for path in files for one in yaml.safe_load_all(path.read_text())]


def named(kind: str, name: str) -> dict[str, Any]:
    """One object."""
    (found,) = (
        one for one in documents() if (one["kind"], one["metadata"]["name"]) == (kind, name)
    )
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a StatefulSet."""

    set_name: str
    ordinal: int

    @property
    def name(self) -> str:
        """As the StatefulSet names it."""
        return f"{self.set_name}-{self.ordinal}"

    @property
    def host(self) -> str:
        """Under which others of the cluster find it."""
        return f"{self.name}.{self.set_name}.{NAMESPACE}.svc"

    @property
    def container(self) -> dict[str, Any]:
        """Its only container."""
        (found,) = named("StatefulSet", self.set_name)["spec"]["template"]["spec"]["containers"]
        assert isinstance(found, dict)
        return found

    def command(self) -> list[str]:
        """The command line of its container."""
        return [*self.container["command"], *self.container.get("args", ())]

    def environment(self) -> dict[str, str]:
        """Variables of its container."""
        fields = {"metadata.name": self.name, "metadata.namespace": NAMESPACE}
        found: dict[str, str] = {}
        for source in self.container.get("envFrom", ()):
            if "configMapRef" in source:
                found |= _generated(source["configMapRef"]["name"])
            else:
                assert source["secretRef"]["optional"], "a test has no secrets"
        for one in self.container["env"]:
            if "valueFrom" in one:
                found[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                found[one["name"]] = _expanded(one["value"], found)
        return found


def _expanded(value: str, known: Mapping[str, str]) -> str:
    """A value with the variables before it for their names."""
    return re.sub(r"\$\((\w+)\)", lambda at: known[at[1]], value)


def _generated(name: str) -> dict[str, str]:
    """A ConfigMap that kustomize makes of a file."""
    settings = yaml.safe_load((FOLDER / "nodes" / "kustomization.yaml").read_text())
    (generator,) = (one for one in settings["configMapGenerator"] if one["name"] == name)
    lines = (FOLDER / "nodes" / generator["envs"][0]).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)
