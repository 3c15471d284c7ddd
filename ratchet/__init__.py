"""Ratchet: machine-learning research that only moves forward and can be replayed."""

__version__ = "0.1.0"
