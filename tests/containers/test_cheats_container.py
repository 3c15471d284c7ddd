"""Every cheat of the catalogue in a container: refused, crashed or without gain, each for its reason; none succeeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import docker
import pytest

from ratchet.sandbox.container import OWNER_LABEL, ContainerSandbox
from ratchet.sandbox.owners import Owner
from tests.faults.attempts import attempts_at_once
from tests.faults.catalogue import CHEATS, PLANTED, Attempt, Ends, Ground, expected, how, lay_ground, none_sleeps
from tests.support.toy_training import make_project

pytestmark = pytest.mark.slow
HELD = {ends for ends in Ends if "not held" not in ends}


@pytest.fixture(scope="module")
def sandbox(cpu_image: str) -> Iterator[ContainerSandbox]:
    """Containers of the built image; when all is done none of this process' is left."""
    made = ContainerSandbox(cpu_image)
    yield made
    left = docker.from_env().containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True)
    assert [found.name for found in left if found.labels[OWNER_LABEL] == str(Owner.me())] == []


@pytest.fixture(scope="module")
def ground(sandbox: ContainerSandbox, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return lay_ground(make_project(tmp_path_factory.mktemp("project")), sandbox)


@pytest.fixture(scope="module")
def attempt_of(
    request: pytest.FixtureRequest,
    ground: Ground,
    sandbox: ContainerSandbox,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Attempt]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", PLANTED)
        with attempts_at_once(request, ground, tmp_path_factory.mktemp("attempts"), sandbox) as started:
            yield started


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_in_a_container_ends_as_the_table_says(
    name: str, attempt_of: Callable[[str], Attempt], ground: Ground
) -> None:
    attempt = attempt_of(name)
    assert how(attempt, ground) is expected(name, "container"), (attempt.result, attempt.trouble)
    assert re.search(CHEATS[name].says, attempt.said), attempt.said
    assert attempt.result.isolation == "container"
    assert PLANTED not in repr(attempt)


def test_cheats_in_containers_are_all_held() -> None:
    assert {cheat.container for cheat in CHEATS.values()} <= HELD


def test_cheat_in_a_container_leaves_no_process(attempt_of: Callable[[str], Attempt]) -> None:
    attempt_of("outlive_the_run")
    assert none_sleeps()
