"""The version of the pack, which pyproject.toml names too."""

__version__ = "0.1.0"
