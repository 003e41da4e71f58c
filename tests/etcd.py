"""Whether there is an etcd to test with."""

import os
import shutil

import pytest

WHERE = "etcd is not installed (apt-get install etcd-server)"


def need_etcd() -> None:
    """Skip where there is no etcd; in CI that is a failure."""
    if shutil.which("etcd") is None:
        if os.environ.get("CI"):
            pytest.fail(WHERE)
        pytest.skip(WHERE)
