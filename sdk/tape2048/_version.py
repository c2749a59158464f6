"""The one place that holds the version. The wheel's metadata is read from here."""

__version__ = "1.0.0"
