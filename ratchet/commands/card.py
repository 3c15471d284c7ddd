"""The card beside a fetched artifact: what it is, how good, on what data, by which parameters, how it is loaded.

Made of the files of the artifact's own revision; what that revision does not say is said to be missing. Refuses to know
where the bytes come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.commands import params_of
from ratchet.core.fingerprint import flatten

if TYPE_CHECKING:
    from dvc.annotations import Artifact

    from ratchet.commands.revisions import Revision

FILE = "README.md"
MARK = "ratchet_artifact"
"""The first key of a card's front matter: a folder that has it is ours to replace."""

MANIFEST, PARAMS = "metrics/prepare.json", "params.yaml"
CORPUS = ("corpus", "origin", "licence", "sha256", "documents", "bytes", "languages")

LOAD_MODEL = """\
import arena, base64, json, safetensors.torch, tiktoken, types
model = arena.build(types.SimpleNamespace(**json.load(open("spec.json")) | {"device": "cpu", "compile": False}))
model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
words = json.load(open("tokenizer.json"))
codec = tiktoken.Encoding("own", pat_str=words["pattern"], special_tokens=words["specials"], mergeable_ranks={
    base64.b64decode(piece): rank for rank, piece in enumerate(words["merges"])})
"""
"""Five statements, typed in the fetched folder; they need torch, safetensors and tiktoken, and no Ratchet."""

LOAD_TOKENIZER = """\
import base64, json, tiktoken
words = json.load(open("tokenizer.json"))
codec = tiktoken.Encoding("own", pat_str=words["pattern"], special_tokens=words["specials"], mergeable_ranks={
    base64.b64decode(piece): rank for rank, piece in enumerate(words["merges"])})
"""
OTHERWISE = "Its files are listed below."
LOADING = {
    "model": f"""Without Ratchet, in this folder (it needs torch, safetensors and tiktoken):

```python
{LOAD_MODEL}```

`model.logits(ids)` of int64 ids [1, T], T at most `sequence_len` of spec.json, gives logits [1, T, vocabulary].
arena.py is the model's source, and an agent may have written it: read it before you run it. `ratchet sample --model
FOLDER` runs it in a sandbox.""",
    "tokenizer": f"""Without Ratchet, in this folder (it needs tiktoken):

```python
{LOAD_TOKENIZER}```

`codec.encode_ordinary(text)` gives ids, `codec.decode(ids)` text.""",
    "code": """It is one file of Python that builds and trains the model, and an agent may have written it: read it
before you run it. In the project that made it, `ratchet promote` brings it into the checkout with its evidence;
elsewhere copy it to arena/train.py.""",
    "document": "It is Markdown: put it before the task, as the agent's instructions.",
    "agents": """One folder per model. With a config.json it loads as
`transformers.AutoModelForCausalLM.from_pretrained("agent-0")`; a lone trained.safetensors holds the weights that were
trained, under their names in the base model, which the parameters name.""",
}


@dataclass(frozen=True)
class Facts:
    """What a revision says of one artifact. `missing`: the files that it lacks."""

    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    manifest: dict[str, Any] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)


def gather(artifact: Artifact, revision: Revision) -> Facts:
    """Read everything that belongs to `artifact` at `revision`."""
    stage = revision.stage(artifact.path)
    missing: list[str] = []

    def found(path: str) -> dict[str, Any] | None:
        if (value := revision.json(path)) is None:
            missing.append(path)
        return value

    outs = [] if stage is None else [str(out.def_path) for out in stage.outs if out.metric]
    judged = list(dict.fromkeys([*outs, *artifact.meta.get("judged_in", [])]))
    metrics = {path: value for path in judged if (value := found(path)) is not None}
    sections = [] if stage is None else [other.name for other in [*revision.above(stage), stage]]
    params = params_of.of_revision(revision.text(PARAMS) or "", revision.name)
    own = [] if stage is None else [str(out.def_path) for out in stage.outs]
    provenance = next((path for path in own if path.endswith("provenance.json")), None)
    return Facts(
        metrics=metrics,
        manifest=found(MANIFEST) if "prepare" in sections else None,
        params={name: value for name, value in params.items() if name in sections},
        provenance=found(provenance) if provenance else None,
        missing=missing,
    )


def card(name: str, artifact: Artifact, revision: Revision, files: Mapping[str, int]) -> str:
    """The card as Markdown. `files`: what was fetched, name and bytes."""
    facts = gather(artifact, revision)
    stage = revision.stage(artifact.path)
    entry = revision.entry(artifact.path)
    md5 = entry.hash_info.value if entry is not None and entry.hash_info is not None else None
    about = {
        "version": revision.name,
        "commit": revision.commit,
        "date": revision.date,
        "type": artifact.type,
        "labels": list(artifact.labels),
        "path": artifact.path,
        "md5": md5,
        "license": (facts.manifest or {}).get("licence"),
    }
    head = yaml.safe_dump({MARK: name, **_given(about)}, sort_keys=False, allow_unicode=True)
    made = [] if stage is None else [f"Made by the stage `{stage.name}`: {stage.desc or stage.cmd}."]
    parts = [
        f"---\n{head}---\n\n# {name} @ {revision.name}",
        *([artifact.desc + "."] if artifact.desc else []),
        *made,
        f"## How good it is\n\n{_quality(facts)}",
        f"## Data\n\n{_data(facts)}",
        f"## How to load it\n\n{LOADING.get(artifact.type or '', OTHERWISE)}",
        f"## Parameters\n\n{_parameters(facts)}",
        f"## Where it comes from\n\n{_origin(facts, revision)}",
        f"## Files\n\n{_table(('file', 'bytes'), ((f'`{path}`', f'{size:,}') for path, size in files.items()))}",
    ]
    if facts.missing:
        parts.append(f"## Not known\n\nThis revision lacks {', '.join(f'`{path}`' for path in facts.missing)}.")
    return "\n\n".join(parts) + "\n"


def is_card(path: Path) -> bool:
    """Whether `path` is a card that this module has written."""
    return path.is_file() and path.read_bytes().startswith(f"---\n{MARK}: ".encode())


def _quality(facts: Facts) -> str:
    judged = facts.metrics.get("metrics/evaluate.json")
    parts = [_verdict(judged, facts.manifest or {})] if judged and {"val_bpb", "documents"} <= set(judged) else []
    for path, values in facts.metrics.items():
        told = {
            key: value
            for key, value in flatten(values).items()
            if value not in (None, {}) and not isinstance(value, list)
        }
        rows = [(f"`{key}`", _cell(value)) for key, value in told.items()]
        parts.append(f"`{path}`:\n\n{_table(('metric', 'value'), rows)}")
    return "\n\n".join(parts) or "No metrics belong to it at this revision."


def _verdict(judged: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """`val_bpb` with what it was judged on, and against what, as far as the revision says."""
    said = f"**{judged['val_bpb']:.4f} bits per byte** (`val_bpb`) on {_cell(judged['documents'])} validation documents"
    said += f", {_cell(judged['bytes'])} bytes" if "bytes" in judged else ""
    said += f" of {manifest['corpus']}" if "corpus" in manifest else ""
    said += ", which no training has seen"
    said += f"; isolation of the model while it was judged: {judged['isolation']}" if "isolation" in judged else ""
    if "ngram_bpb" in judged:
        said += f". A byte n-gram model needs {judged['ngram_bpb']:.4f} on the same documents"
    return said + "."


def _data(facts: Facts) -> str:
    if facts.manifest is None:
        return "It reads nothing of the corpus; what it was made from is named in the parameters."
    rows = [(key, _cell(facts.manifest[key])) for key in CORPUS if facts.manifest.get(key) is not None]
    rows += [
        (f"{split} documents", _cell(value["documents"])) for split, value in facts.manifest.get("splits", {}).items()
    ]
    return _table(("", ""), rows)


def _parameters(facts: Facts) -> str:
    if not facts.params:
        return "None: no stage of this revision makes it."
    return f"```yaml\n{yaml.safe_dump(facts.params, sort_keys=False, allow_unicode=True)}```"


def _origin(facts: Facts, revision: Revision) -> str:
    where = "the checkout, with results that no commit has" if revision.commit is None else f"commit {revision.commit}"
    rows = [("revision", where), *([("committed", revision.date)] if revision.date else [])]
    for key, value in flatten(facts.provenance or {}).items():
        if value is not None and value != {}:
            rows.append((f"run: {key}", " ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return _table(("", ""), rows)


def _table(columns: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {key} | {value} |".replace("\n", " ") for key, value in rows]
    return "\n".join([f"| {columns[0]} | {columns[1]} |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value).replace("|", "\\|")
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, [], "")}
