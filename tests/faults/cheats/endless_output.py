"""Prints until the disk is full.

Stopped by the limit of what a candidate may print.
"""


def build(spec):
    while True:
        print("x" * 65536)
