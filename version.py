"""The version of kernelcast, and those of the packages it runs with."""

from __future__ import annotations

__version__ = "0.1.0"


def versions(*packages: str) -> dict[str, str]:
    """Versions of packages by name; those that are not installed are left out."""
    # Imported late: it takes longer than all else that most users of this file need.
    from importlib.metadata import PackageNotFoundError

    installed: dict[str, str] = {}
    for package in packages:
        try:
            installed |= required_versions(package)
        except PackageNotFoundError:
            continue
    return installed


def required_versions(*packages: str) -> dict[str, str]:
    """Versions of packages by name.

    Raises:
        importlib.metadata.PackageNotFoundError: one of them is not installed; its `name` is the package.
    """
    from importlib.metadata import version

    return {package: version(package) for package in packages}
