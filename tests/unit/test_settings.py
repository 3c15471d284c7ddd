"""Settings: from the environment or .env, refused by name when wrong, and kept out of what defines a result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet import settings as module
from ratchet.core.errors import InputError
from ratchet.settings import Settings, child_environment, settings


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("RATCHET_") or name == "HF_TOKEN"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_settings_have_a_default_and_a_description_for_every_field() -> None:
    assert settings().runs == Path("runs")
    assert all(field.description for field in Settings.model_fields.values())


def test_settings_environment_wins_over_env_file_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("RATCHET_THREADS=3\nRATCHET_WANDB=disabled\n")
    monkeypatch.setenv("RATCHET_THREADS", "5")
    assert (settings().threads, settings().wandb) == (5, "disabled")


def test_settings_unknown_name_in_the_env_file_is_refused_without_its_value() -> None:
    Path(".env").write_text("HF_TOKEN=secret-1\nRATCHET_THREDS=secret-2\n")
    with pytest.raises(InputError, match="unknown setting RATCHET_THREDS; did you mean RATCHET_THREADS") as caught:
        settings()
    assert str(caught.value).startswith(".env: ")
    assert "secret" not in str(caught.value)


def test_settings_env_file_elsewhere_is_read_and_its_token_stays_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("project") / ".env"
    file.write_text("HF_TOKEN=secret-1\nRATCHET_THREADS=3\n")
    monkeypatch.setenv("RATCHET_ENV_FILE", str(file))
    assert settings().threads == 3
    assert settings().hub_token is not None
    assert "secret-1" not in repr(settings())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RATCHET_THREADS", "many", "RATCHET_THREADS='many'"),
        ("RATCHET_THREADS", "-1", "RATCHET_THREADS='-1'"),
        ("RATCHET_WANDB", "on", "RATCHET_WANDB='on'"),
        ("RATCHET_DEVIC", "cpu", "unknown setting RATCHET_DEVIC; did you mean RATCHET_DEVICE?"),
        ("RATCHET_QQ", "1", "unknown setting RATCHET_QQ; unset it; there are RATCHET_DEVICE, "),
    ],
)
def test_settings_wrong_or_unknown_variable_is_refused_by_name(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught:
        settings()
    assert said in str(caught.value)


def test_settings_token_is_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-1")
    assert settings().hub_token is not None
    assert "secret-1" not in repr(settings())


def test_child_environment_quiets_tools_but_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    child = child_environment(EXTRA="1")
    assert (child["MPLBACKEND"], child["DO_NOT_TRACK"], child["EXTRA"]) == ("TkAgg", "1", "1")
    assert child["PATH"] == os.environ["PATH"]


def test_child_environment_reads_utf8_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    code = "import locale, pathlib; print(locale.getpreferredencoding(False)); print('é → ü')"
    latin = child_environment(LC_ALL="en_US.ISO-8859-1", LANG="en_US.ISO-8859-1")
    said = subprocess.run([sys.executable, "-c", code], env=latin, capture_output=True, check=True).stdout
    assert said.decode() == "utf-8\né → ü\n"


def test_settings_module_is_the_only_reader_of_the_environment() -> None:
    project = Path(module.__file__).parents[1]
    readers = {
        path.relative_to(project).as_posix()
        for folder in ("ratchet", "steps", "flows", "arena")
        for path in (project / folder).rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("os.environ", "getenv", "import environ"))
    }
    assert readers == {"ratchet/settings.py"}
