"""The one place that holds the version; the wheel's metadata is read from here."""

__version__ = "0.1.0"
