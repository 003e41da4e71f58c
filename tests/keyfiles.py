"""The files of nodes that have users."""

from pathlib import Path

from duolog_server.node.identity.access.secrets import new_key


def key_file(directory: Path) -> Path:
    """The key of a directory's nodes; a new one where it has none."""
    path = directory / "users.key"
    if not path.exists():
        path.write_text(new_key())
        path.chmod(0o600)
    return path


def access_files(directory: Path, password: str, user: str = "root") -> dict[str, str]:
    """The section `access` of nodes whose first user that is."""
    first = directory / "first-user"
    first.write_text(f"{user}:{password}\n")
    return {"key_file": str(key_file(directory)), "first_user_file": str(first)}
