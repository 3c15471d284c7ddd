"""docs/team.md and docs/team_port.md say what is there; the ported example is made of fields that exist, and runs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team import TeamConfig, TeamTrainer
from ratchet.loops.team.parameters import PORTABLE
from ratchet.loops.team.tasks import SHIPPED
from ratchet.loops.team.tasks.stories import length_ratio

DOCS = Path(__file__).resolve().parents[5] / "docs"
PAGE, PORT = ((DOCS / name).read_text(encoding="utf-8") for name in ("team.md", "team_port.md"))
BLOCKS = re.findall(r"```python\n(.*?)```", PORT, re.DOTALL)


def calls(code: str, name: str) -> list[ast.Call]:
    """The calls of `name` in `code`."""
    found = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    return [call for call in found if ast.unparse(call.func) == name]


def config_rows() -> dict[str, list[str]]:
    """The rows of the page's table of the config, by field."""
    table = PAGE.partition("\n## Config\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}


def shown(value: Any) -> str:
    """A default as the page writes it."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def test_page_config_table_has_every_field_with_its_default() -> None:
    rows = config_rows()
    assert set(rows) == set(TeamConfig.model_fields)
    for name, field in TeamConfig.model_fields.items():
        assert rows[name][1] == shown(field.default), name
        assert rows[name][3].endswith("portable") == (name in PORTABLE), name


def test_page_says_of_each_default_that_differs_why() -> None:
    differ = [name for name, row in config_rows().items() if row[2] != "–" and row[1] != row[2]]
    assert differ == ["early_termination_threshold"]
    assert "| early termination | −0.2 | off (`null`) |" in PAGE


def test_page_names_every_shipped_task() -> None:
    assert all(f"| `{name}`" in PAGE for name in SHIPPED)


def test_ported_config_is_made_of_fields_that_exist() -> None:
    (call,) = calls(BLOCKS[0], "TeamConfig")
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert {"num_train_epochs", "agent_learning_rate", "num_generations", "max_new_tokens"} <= given.keys()
    config = TeamConfig.model_validate(given)
    assert {name: getattr(config, str(name)) for name in given} == given


def test_ported_trainer_is_called_with_parameters_that_it_has() -> None:
    known = set(inspect.signature(TeamTrainer).parameters)
    (made,) = calls(BLOCKS[0], "TeamTrainer")
    assert {keyword.arg for keyword in made.keywords} <= known
    (resumed,) = calls(BLOCKS[1], "TeamTrainer.resume")
    resume = set(inspect.signature(TeamTrainer.resume).parameters) | known
    assert {keyword.arg for keyword in resumed.keywords} <= resume


def test_ported_example_runs_and_goes_on_for_two_more_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def model(name: str) -> Any:
        return toy_team.model()

    def tokenizer(name: str) -> Any:
        return toy_team.tokenizer()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_WANDB", "disabled")
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", tokenizer)
    smaller = BLOCKS[0].replace("num_train_epochs=3", "num_train_epochs=2").replace("=128", "=6").replace("=8,", "=2,")
    names: dict[str, Any] = {}
    exec(compile(smaller, "team_port.md", "exec"), names)
    assert (tmp_path / "story/models").is_dir()
    run, first = names["trainer"].path, len(list((tmp_path / "story/models").iterdir()))
    assert first == 2
    exec(compile(BLOCKS[1], "team_port.md", "exec"), names)
    assert names["trainer"].path == run.resolve()
    reward = names["proper_length_ratio_reward"]
    texts = ["", "a", "abcd"], ["x", "xyz", "x" * 30]
    assert reward(*texts) == [length_ratio(one, two) for one, two in zip(*texts, strict=True)]


def test_ported_example_without_a_transition_needs_one_turn() -> None:
    with pytest.raises(InputError, match="no external_transition"):
        TeamTrainer(TeamConfig.model_validate({"num_turns": 2}), reward=len, train_dataset=[{"prompt": "a"}],
                    agents=[toy_team.model(), toy_team.model()], tokenizer=toy_team.tokenizer())  # fmt: skip
