"""Ends with exit code 0 and leaves nothing.

Stopped by the check of what a training leaves: success without a model is none.
"""

import os


def build(spec):
    os._exit(0)
