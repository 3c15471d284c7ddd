"""Lineage from dvc.yaml and dvc.lock, read as YAML."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.core.errors import InputError
from ratchet.report import lineage
from ratchet.report.graph import graph

ROOT = Path(__file__).resolve().parents[3]


def test_read_made_up_project_has_parents_hashes_params(result: Path) -> None:
    nodes = {node.name: node for node in lineage.read(result, writing="plot")}
    assert list(nodes) == ["prepare", "tokenizer", "pack", "train", "evaluate", "iterate", "skill", "team", "plot"]
    assert nodes["train"].parents == ("tokenizer", "pack")
    assert nodes["evaluate"].params == {"evaluate": {}}
    assert all(item.hash for item in (*nodes["train"].deps, *nodes["train"].outs))


def test_read_stage_being_written_ignores_its_old_entry(result: Path) -> None:
    plot = next(node for node in lineage.read(result, writing="plot") if node.name == "plot")
    assert all(item.hash is None for item in (*plot.deps, *plot.outs))


def test_read_without_lock_has_no_hashes(result: Path) -> None:
    (result / "dvc.lock").unlink()
    assert all(out.hash is None for node in lineage.read(result, writing="plot") for out in node.outs)


def test_read_garbled_lock_is_one_line(result: Path) -> None:
    (result / "dvc.lock").write_text("stages: [")
    with pytest.raises(InputError, match="not YAML"):
        lineage.read(result, writing="plot")


def test_read_missing_dvc_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dvc\.yaml: no such file"):
        lineage.read(tmp_path, writing="plot")


def test_read_stages_that_wait_for_each_other_are_named(tmp_path: Path) -> None:
    stages = {"a": {"deps": ["y"], "outs": ["x"]}, "b": {"deps": ["x"], "outs": ["y"]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    with pytest.raises(InputError, match="the stages a, b wait for each other"):
        lineage.read(tmp_path, writing="plot")


def test_read_this_project_agrees_with_dvc_itself() -> None:
    nodes = lineage.read(ROOT, writing="plot")
    told = subprocess.run(
        [sys.executable, "-m", "dvc", "dag", "--dot"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    edges = {tuple(part.strip('" ;') for part in line.split("->")) for line in told.splitlines() if "->" in line}
    assert {(parent, node.name) for node in nodes for parent in node.parents} == edges


def test_graph_draws_each_stage_and_each_edge_once(result: Path) -> None:
    nodes = lineage.read(result, writing="plot")
    drawing = graph(nodes, {"train": "<b>"})
    assert drawing.count('class="box"') == len(nodes)
    assert drawing.count("marker-end") == sum(len(node.parents) for node in nodes)
    assert "&lt;b&gt;" in drawing
    assert "<b>" not in drawing


def test_graph_puts_a_stage_that_reads_from_none_right_before_its_reader(result: Path) -> None:
    drawing = graph(lineage.read(result, writing="plot"), {})
    boxes = re.findall(r'<rect class="box" x="([\d.]+)" y="([\d.]+)"', drawing)
    names = re.findall(r'<text class="name"[^>]*>(\w+)<', drawing)
    place = {name: (float(x), float(y)) for name, (x, y) in zip(names, boxes, strict=True)}
    assert place["prepare"][0] == min(x for x, _ in place.values())
    assert place["skill"][0] == place["evaluate"][0] == sorted({x for x, _ in place.values()})[-2]
    assert place["skill"][1] > place["evaluate"][1]
