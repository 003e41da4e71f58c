"""What pyproject.toml cannot say: a wheel with the kernels' library is one of this platform.

Without the library (`tools/kernel_library.py`), as from the sdist, the wheel is one of any
platform, and the kernels are compiled by the first start.
"""

from pathlib import Path

from setuptools import Distribution, setup

KERNELS = Path(__file__).parent / "duolog_server" / "store" / "kernels"


class Server(Distribution):
    """The distribution, whose only compiled module is not made by setuptools."""

    def has_ext_modules(self) -> bool:
        """Whether wheels are of a platform and a Python."""
        return any(KERNELS.glob("_compiled.*"))


setup(distclass=Server)
