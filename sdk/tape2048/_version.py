"""The one place that holds the version. The wheel's metadata is read from here."""

__version__ = "0.1.0"
