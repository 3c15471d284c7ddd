"""Randomness derived from names: no generator is carried from one step to the next, so nothing can be lost by a kill.

Refuses to know what the numbers are used for.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator

_ROUNDS = 6
_MASK = (1 << 64) - 1


def derive(seed: int, *names: object) -> int:
    """A seed of 63 bits from `seed` and `names` (JSON values; integers of NumPy and torch count as integers).

    Equal arguments give the same number on every machine; raises TypeError for what is no JSON value.
    """
    text = json.dumps([seed, *names], default=operator.index, separators=(",", ":"), allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Permutation:
    """A keyed bijection of range(size): `permutation[i]` is arithmetic, so a position is the whole state of an order.

    Feistel rounds on the rectangle a × b ≥ size with a ≈ b (Black and Rogaway 2002), walking the cycle until the value
    falls inside; a·b − size < a, so almost every call needs one pass.
    """

    def __init__(self, size: int, key: int) -> None:
        self._size = size
        self._a = math.isqrt(max(size - 1, 0)) + 1
        self._b = -(-size // self._a)
        self._keys = [derive(key, "permutation", size, turn) for turn in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        """The place of `index` in 0 … size−1. Raises IndexError outside."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        value = self._pass(index)
        while value >= self._size:
            value = self._pass(value)
        return value

    def _pass(self, value: int) -> int:
        left, right = divmod(value, self._b)
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right = (right + _mix(left ^ key)) % self._b
            else:
                left = (left + _mix(right ^ key)) % self._a
        return left * self._b + right


def _mix(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea and Flood 2014)."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
