"""The version of anyaccel, which all of its distributions have; `nox -s bump` writes it."""

__version__ = "0.1.0"
