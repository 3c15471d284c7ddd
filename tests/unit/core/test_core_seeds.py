"""Seeds from names, and the keyed permutation: a bijection that looks random and never changes between versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.seeds import Permutation, derive


def test_derive_never_changes_between_versions() -> None:
    assert derive(1, "rows", 0) == 248856256459579509
    assert list(Permutation(10, 7)) == [5, 6, 3, 4, 8, 9, 7, 0, 1, 2]


@given(st.integers(0, 2**63), st.lists(st.text() | st.integers(), max_size=3))
def test_derive_is_a_63_bit_number_that_every_part_changes(seed: int, names: list[str | int]) -> None:
    value = derive(seed, *names)
    assert 0 <= value < 2**63
    assert value != derive(seed + 1, *names)
    assert value != derive(seed, *names, "more")


def test_derive_tells_types_and_boundaries_apart_but_takes_numpy_integers_as_integers() -> None:
    assert len({derive(1, "2"), derive(1, 2), derive(1, "a", "b"), derive(1, "ab"), derive(1, ["a", "b"])}) == 5
    assert derive(1, np.int64(2)) == derive(np.int32(1), 2) == derive(1, 2)


@pytest.mark.parametrize("name", [object(), np.float32(1.0), {1, 2}])
def test_derive_what_is_no_json_is_refused(name: object) -> None:
    with pytest.raises(TypeError):
        derive(1, name)


@given(st.integers(0, 400), st.integers(0, 2**63))
def test_permutation_is_a_bijection(size: int, key: int) -> None:
    assert sorted(Permutation(size, key)) == list(range(size))


@given(st.integers(1, 10**12), st.integers(0, 2**63), st.data())
def test_permutation_large_stays_inside_and_does_not_collide(size: int, key: int, data: st.DataObject) -> None:
    permutation = Permutation(size, key)
    one, two = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    assert 0 <= permutation[one] < size
    assert (permutation[one] == permutation[two]) == (one == two)


@pytest.mark.parametrize("index", [-1, 5, 10**9])
def test_permutation_outside_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        Permutation(5, 1)[index]


@pytest.mark.parametrize("size", [2, 3, 5, 12])
def test_permutation_over_keys_puts_each_index_at_each_place_equally_often(size: int) -> None:
    """Chi-square with (size-1)² degrees of freedom stays below mean + 5 sd; a poor mixer is far above."""
    trials = 3000
    counts = np.zeros((size, size))
    for key in range(trials):
        for index, place in enumerate(Permutation(size, key)):
            counts[index, place] += 1
    expected = trials / size
    freedom = (size - 1) ** 2
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_permutation_neighbours_do_not_stay_neighbours_and_keys_do_not_resemble_each_other() -> None:
    one, two = (np.array(list(Permutation(5000, key))) for key in (1, 2))
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.06
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.06
    assert (one == two).sum() < 10
