"""The page and the PNGs of one result, without a browser."""

from __future__ import annotations

import math
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import yaml

import made_result
from made_result import facts_of
from ratchet.report import html, palette, plots, svg
from shards import write_documents
from well_formed import Elements, balanced

ROOT = Path(__file__).resolve().parents[3]
EVIL = "<script>alert('x')</script>&\"</table>"


def page_of(root: Path, documents: int = 0) -> str:
    look = {
        name: (ROOT / f"ratchet/report/page.{end}").read_text() for name, end in (("style", "css"), ("script", "js"))
    }
    return html.build(facts_of(root), smoothing=0.05, documents=documents, **look)


def test_page_is_well_formed_and_its_ids_are_unique(result: Path) -> None:
    elements = Elements(page_of(result))
    assert elements.open == []
    ids = [attributes["id"] for _, attributes in elements.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"] for tag, attributes in elements.seen if tag == "a"]
    assert targets
    assert all(target and target.startswith("#") and target[1:] in ids for target in targets)


def test_page_asks_the_network_for_nothing(result: Path) -> None:
    page = page_of(result)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\((?!#)|fetch\(|XMLHttpRequest""", page)
    assert "default-src 'none'" in page
    assert len(page.encode()) < 6_000_000


def test_page_same_facts_give_the_same_text(result: Path) -> None:
    assert page_of(result) == page_of(result)


def test_headline_says_bpb_gain_documents_isolation(result: Path) -> None:
    judged = facts_of(result).metrics["evaluate"]
    page = page_of(result)
    assert f"<strong>{judged['val_bpb']:.4f} bits per byte</strong> for 60 documents" in page
    assert f"<em>{judged['gain_over_ngram']:.4f} fewer than</em> a byte n-gram model" in page
    assert "isolation: weak" in page
    assert "uncommitted changes in the tree: train" in page


def test_headline_model_worse_than_the_baseline_says_so(result: Path) -> None:
    told = facts_of(result)
    table = told.documents.drop(columns="beginning")
    table = table.assign(ngram_nats=table["nats"] - 0.25 * math.log(2) * table["bytes"])
    table.to_parquet(result / "data/evaluate/documents.parquet")
    judged = told.metrics["evaluate"]
    judged = {**judged, "gain_over_ngram": -0.25, "ngram_bpb": judged["val_bpb"] - 0.25}
    made_result.write_json(result / "metrics/evaluate.json", judged)
    page = page_of(result)
    assert "<em>0.2500 more than</em> a byte n-gram model" in page
    assert "0.2500 (95 %: 0.250 to 0.250) ABOVE the byte n-gram" in page
    assert "<dt>Above the n-gram</dt>" in page


def test_page_text_from_data_is_escaped_everywhere(result: Path) -> None:
    write_documents(result / "data/prepare/val", [EVIL] * 60)
    prepare = result / "metrics/prepare.json"
    told = facts_of(result).metrics["prepare"]
    made_result.write_json(prepare, {**told, "corpus": EVIL, "licence": EVIL, "languages": {EVIL: 3}})
    spoilt = made_result.provenance_of("train") | {
        "device": EVIL,
        "platform": EVIL,
        "image_digest": EVIL,
        "commit": EVIL,
    }
    made_result.write_json(result / "data/train/provenance.json", spoilt)
    made_result.write_json(result / "data/evaluate/provenance.json", spoilt)
    pipeline = yaml.safe_load((result / "dvc.yaml").read_text())
    pipeline["stages"]["train"]["desc"] = EVIL
    (result / "dvc.yaml").write_text(yaml.safe_dump(pipeline, sort_keys=False))
    lock = yaml.safe_load((result / "dvc.lock").read_text())
    lock["stages"]["train"]["params"]["params.yaml"]["train"] = {"name": EVIL}
    (result / "dvc.lock").write_text(yaml.safe_dump(lock))
    page = page_of(result)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") >= 60 + 3 + 4 + 2
    assert balanced(page)


def test_script_json_cannot_end_its_element() -> None:
    assert "</script" not in svg.script_json({"name": "</script><b>"})


def test_document_table_is_cut_to_the_hardest_and_says_so(result: Path) -> None:
    page = page_of(result, documents=7)
    assert "The 7 hardest of 60 are listed." in page
    hardest = facts_of(result).documents.nlargest(7, "bpb")["document"].tolist()
    listed = re.findall(r'<tr><td data-value="(\d+)">', page.partition('<div class="documents">')[2])
    assert [int(number) for number in listed] == hardest


def test_reproduce_names_commit_result_and_model_hash(result: Path) -> None:
    page = page_of(result)
    told = facts_of(result)
    assert f"git checkout {told.provenance['evaluate']['commit']}" in page
    assert repr(told.metrics["evaluate"]["val_bpb"]) in page
    model = next(out.hash for node in told.lineage for out in node.outs if out.path == "data/train/model")
    assert f"md5: {model}" in page
    assert "No commit holds the whole tree that ran train" in page


def test_lineage_hash_of_the_page_itself_is_not_claimed(result: Path) -> None:
    assert "no hash yet" in page_of(result)


def test_page_without_gradient_norms_and_memory_has_no_empty_chart(result: Path) -> None:
    for name, column in (("history.tsv", "grad_norm"), ("timing/steps.tsv", "memory_mb")):
        path = result / "data/train" / name
        pd.read_csv(path, sep="\t").assign(**{column: None}).to_csv(path, sep="\t", index=False)
    page = page_of(result)
    assert 'id="gradient-norm"' not in page
    assert 'id="memory"' not in page


@pytest.mark.parametrize(("steps", "documents"), [(1, 1), (2, 2)])
def test_page_and_png_smallest_results_are_drawn(tmp_path: Path, steps: int, documents: int) -> None:
    made_result.make_result(tmp_path, steps=steps, documents=documents)
    page = page_of(tmp_path)
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    assert f"After {steps} step{'s' if steps > 1 else ''} on" in page
    assert len(plots.draw(facts_of(tmp_path), smoothing=0.1, dpi=50)) == 4


def test_pngs_are_the_same_bytes_whatever_the_users_style(result: Path) -> None:
    told = facts_of(result)
    first = plots.draw(told, smoothing=0.05, dpi=60)
    with mpl.rc_context({"xtick.labelsize": 30, "ytick.major.size": 20, "axes.facecolor": "black"}):
        assert plots.draw(told, smoothing=0.05, dpi=60) == first
    assert tuple(first) == plots.FILES
    for picture in first.values():
        assert picture.startswith(b"\x89PNG")
        assert b"Software" not in picture
        assert b"tIME" not in picture


def test_bpb_shares_add_up_to_all_bytes(result: Path) -> None:
    edges, ours, theirs = plots.bpb_shares(facts_of(result))
    assert math.isclose(ours.sum(), 100)
    assert math.isclose(theirs.sum(), 100)
    assert (np.diff(edges) > 0).all()


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("front", ["ink", "quiet", "main", "base", "other", "warn"])
def test_palette_text_has_a_contrast_of_4_5_on_paper_and_card(colours: palette.Palette, front: str) -> None:
    for back in (colours.paper, colours.card):
        light, dark = sorted((luminance(getattr(colours, front)), luminance(back)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_docs_example_draws_page_and_pictures(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (ROOT / "docs/report.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {"facts": facts_of(result)}
    monkeypatch.chdir(ROOT)
    exec(compile(code, "docs/report.md", "exec"), names)
    assert str(names["page"]).startswith("<!doctype html>")
    assert names["pictures"]
