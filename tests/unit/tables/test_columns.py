"""columns.find: one column under the names people give it."""

from __future__ import annotations

import pandas as pd
import pytest

from ratchet.core.errors import InputError
from ratchet.tables import columns

FRAME = pd.DataFrame({"step": [1], "train_loss": [2.0], "lr-scale": [1.0]})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("train_loss",), "train_loss"),
        (("loss", "train_loss"), "train_loss"),
        (("lr_scale",), "lr-scale"),
        (("LR Scale",), "lr-scale"),
        (("Train/Loss",), "train_loss"),
    ],
)
def test_find_alias_present_gives_the_name_in_the_table(names: tuple[str, ...], found: str) -> None:
    assert columns.find(FRAME, *names) == found


def test_find_earlier_name_wins_over_later() -> None:
    frame = pd.DataFrame({"val_acc": [0], "selection_hard": [1]})
    assert columns.find(frame, "selection_hard", "val_acc") == "selection_hard"


def test_find_none_fits_names_present_columns_and_nearest() -> None:
    with pytest.raises(InputError) as caught:
        columns.find(FRAME, "train_los", "objective", where="history.tsv")
    said = str(caught.value)
    assert said.startswith("history.tsv: ")
    assert "step, train_loss, lr-scale" in said
    assert said.endswith("did you mean train_loss?")


def test_find_table_without_columns_says_none() -> None:
    with pytest.raises(InputError, match="the columns are none"):
        columns.find(pd.DataFrame(), "loss")
