"""The `evaluate` section of params.yaml, which the stage and `python arena/train.py` both judge by.

Knows names, units and ranges; refuses to know how judging is done.
"""

from __future__ import annotations

from pydantic import Field

from ratchet.params import Params


class NgramParams(Params):
    """The baseline: interpolated Kneser-Ney over bytes."""

    context_bytes: int = Field(default=5, ge=0, le=6, description="bytes of context")
    discount: float = Field(default=0.8, gt=0, lt=1, description="counts are lowered by this, at every order")


class EvaluateParams(Params):
    """Section `evaluate` of params.yaml."""

    batch_rows: int = Field(default=4, ge=1, description="rows the judge asks for at once; moves val_bpb by < 1e-6")
    limit_s: float = Field(default=3600, gt=0, description="seconds after which the judging is given up")
    ngram: NgramParams = Field(default_factory=NgramParams, description="the baseline")
