"""The smoke pipeline with each leaf stage, and each judged model, in a container: the same bytes as in processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stage_runs import Pipeline

pytestmark = pytest.mark.slow

MAY_DIFFER = ("provenance.json", "timing", "timing.json")
"""Time, memory and place (docs/pipeline.md)."""

TELLS_WHERE = "metrics/evaluate.json"
"""It says in one word how the candidate was held; the rest of it is compared below."""


def locked(project: Path) -> dict[str, dict[str, Any]]:
    """Each stage → what dvc.lock says of its inputs, parameters and outputs, but for what may differ."""
    stages = yaml.safe_load((project / "dvc.lock").read_text())["stages"]
    for stage in stages.values():
        for part in ("deps", "outs"):
            stage[part] = [entry for entry in stage[part] if Path(entry["path"]).name.split("-")[-1] not in MAY_DIFFER]
    judged = stages["evaluate"]["outs"]
    stages["evaluate"]["outs"] = [entry for entry in judged if entry["path"] != TELLS_WHERE]
    assert len(stages["evaluate"]["outs"]) == len(judged) - 1
    return stages


def test_smoke_pipeline_in_containers_gives_the_bytes_of_processes(
    here: Pipeline, there: Pipeline, cpu_image: str
) -> None:
    for made, contained in ((here, False), (there, True)):
        for stage in ("prepare", "tokenizer", "pack", "train"):
            assert (f"{stage}: in a container of {cpu_image}" in made.said) == contained
        assert (f"sandbox: container of {cpu_image}" in made.said) == contained  # the judge's candidates
    assert set(locked(here.project)) == {"prepare", "tokenizer", "pack", "train", "evaluate"}
    assert locked(there.project) == locked(here.project)


def test_smoke_metrics_of_a_candidate_in_a_container_are_those_of_a_process_but_for_the_word(
    here: Pipeline, there: Pipeline
) -> None:
    weak, held = ((made.project / TELLS_WHERE).read_text() for made in (here, there))
    assert (json.loads(weak)["isolation"], json.loads(held)["isolation"]) == ("weak", "container")
    assert held.replace('"isolation": "container"', '"isolation": "weak"') == weak
