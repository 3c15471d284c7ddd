"""Takes memory until the machine has none.

Stopped by the limit of memory.
"""


def build(spec):
    taken = []
    while True:
        taken.append(b"\1" * 2**24)
