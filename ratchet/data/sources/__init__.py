"""Where text comes from: one protocol (`protocol.py`) and four sources, chosen by `prepare.source`."""
