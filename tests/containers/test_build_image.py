"""Images built on a real engine: the same inputs give the same files, nothing but what was ordered gets in."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import docker
import pytest
from docker.errors import APIError
from docker.models.images import Image

import build
from contents import Contents, contents
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import file_digest
from toy_wheels import make_project, make_wheel

TAG, ANOTHER_TAG = "ratchet-toy:test", "ratchet-toy-too:test"
ROOT = Path(__file__).resolve().parents[2]


def toy_order(folder: Path, base: str) -> build.Order:
    """An image of two small packages, all from a folder: the wheel of pip is the one that made the CPU image."""
    index = folder / "an index"
    make_wheel(index, "root", "1", needs=("leaf",))
    make_wheel(index, "leaf", "2")
    shutil.copy(next(build.CACHE.glob("wheels-*/pip-*.whl")), index)
    project = make_project(folder / "ein Projekt ü", ["root"], ["root==1", "leaf==2"])
    return build.Order(
        recipe=replace(build.RECIPES["cpu"], tag=TAG),
        project=project, base=base, cache=folder / "cache", lock=folder / "images.lock",
        pip_flags=["--no-index", f"--find-links={index}"], say=lambda line: None,
    )  # fmt: skip


def remove(engine: docker.DockerClient, *tags: str) -> None:
    for image in {image.id for tag in tags for image in engine.images.list(tag)}:
        engine.images.remove(image, force=True)


@pytest.fixture
def order(tmp_path: Path, base_image: str, cpu_image: str, engine: docker.DockerClient) -> Iterator[build.Order]:
    """Of an image that is not there yet."""
    yield replace(toy_order(tmp_path, base_image), tag=ANOTHER_TAG)
    remove(engine, ANOTHER_TAG)


@dataclass(frozen=True)
class Built:
    """An image that is there, in a project that is a git repository. Tests leave it, its cache and its lock alone."""

    order: build.Order
    image: Image
    listed: Contents


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, base_image: str, cpu_image: str, engine: docker.DockerClient
) -> Iterator[Built]:
    order = toy_order(tmp_path_factory.mktemp("toy"), base_image)
    subprocess.run("git init -q . && git add . && git -c user.name=t -c user.email=t@t commit -qm t",
                   shell=True, cwd=order.project, check=True)  # fmt: skip
    remove(engine, TAG)  # one that a killed run left is up to date but for its commit
    image = build.build(order)
    yield Built(order, image, contents(engine, image))
    remove(engine, TAG)


@pytest.fixture
def another(built: Built, tmp_path: Path, engine: docker.DockerClient) -> Iterator[build.Order]:
    """The order of `built` under another name, with a copy of its wheels."""
    shutil.copytree(built.order.cache, tmp_path / "cache")
    yield replace(built.order, tag=ANOTHER_TAG, cache=tmp_path / "cache", lock=tmp_path / "images.lock")
    remove(engine, ANOTHER_TAG)


def shell(engine: docker.DockerClient, image: str, script: str) -> str:
    ran = engine.containers.run(image, ["sh", "-c", script], remove=True, network_mode="none", read_only=True)
    return ran.decode().strip()


def test_image_built_twice_has_the_same_files_and_hashes(
    built: Built, another: build.Order, engine: docker.DockerClient
) -> None:
    second = build.build(replace(another, rebuild=True))  # seconds later: a file stamped with the time would show
    assert second.id != built.image.id
    assert contents(engine, second) == built.listed
    compiled = [entry.path for entry in built.listed.entries if "root/__pycache__/__init__." in entry.path]
    assert len(compiled) == 1, "every start would compile again"


def test_image_with_one_line_changed_has_other_contents(
    built: Built, another: build.Order, engine: docker.DockerClient
) -> None:
    make_wheel(next(another.cache.glob("wheels-*")), "leaf", "2", text="# another line")
    changed = contents(engine, build.build(another))
    assert changed.sha256 != built.listed.sha256
    before, after = ({entry.path: entry.content for entry in found.entries} for found in (built.listed, changed))
    assert {path for path in after if before.get(path) != after[path]} == {
        path for path in after if "/leaf" in path and (path.endswith((".py", ".pyc", "RECORD")))
    }


def test_image_that_is_up_to_date_is_not_built_again(built: Built) -> None:
    said: list[str] = []
    assert build.build(replace(built.order, say=said.append)).id == built.image.id
    assert "nothing to do" in said[-1]
    (built.order.project / "README").write_text("code and pages change, the image does not\n")
    assert build.build(built.order).id == built.image.id


def test_image_is_recorded_with_all_that_went_in_and_came_out(built: Built, engine: docker.DockerClient) -> None:
    project = built.order.project
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True).stdout
    labels = engine.images.get(TAG).labels
    assert labels[build.REVISION] == commit.strip()
    assert labels[build.CONSTRAINTS] == file_digest(project / "constraints.txt")
    recorded = json.loads(built.order.lock.read_text())[TAG]
    assert recorded["image"] == built.image.id
    assert recorded["files_sha256"] == built.listed.sha256
    names = sorted(name.partition("-")[0] for name in recorded["inputs"]["wheels"])
    assert names == ["leaf", "pip", "root"]
    assert recorded["inputs"]["base"]["image"] == engine.images.get(built.order.base).id


def test_image_locked_refuses_wheels_that_are_not_recorded(built: Built, another: build.Order) -> None:
    build.build(replace(built.order, locked=True))
    make_wheel(next(another.cache.glob("wheels-*")), "leaf", "2", text="# another line")
    with pytest.raises(InputError, match=r"its wheels are not those in images\.lock: leaf-2-py3"):
        build.build(replace(built.order, cache=another.cache, locked=True))


def test_image_wheel_changed_after_it_was_hashed_is_refused(
    order: build.Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = build.requirements_text
    monkeypatch.setattr(
        build, "requirements_text", lambda wheels: hashed(wheels).replace("sha256:", "sha256:0")[:-2] + "\n"
    )
    with pytest.raises(InputError, match=f"{ANOTHER_TAG}: the build stopped: .*(hash|HASH)"):
        build.build(order)


def test_image_dependency_that_contradicts_another_stops_the_build(order: build.Order) -> None:
    index = Path(order.pip_flags[1].partition("=")[2])
    make_wheel(index, "root", "3", needs=("leaf>=9",))
    make_project(order.project, ["root"], ["root==3", "leaf==2"])
    with pytest.raises(InputError, match=f"{ANOTHER_TAG}: the build stopped: .*leaf"):
        build.build(order)


def test_image_on_a_base_that_cannot_be_had_is_one_line(order: build.Order) -> None:
    with pytest.raises(InfrastructureError) as caught:
        build.build(replace(order, base="no-such/base:1"))
    assert str(caught.value).startswith(
        f"{ANOTHER_TAG}: the base no-such/base:1 is not on this engine and cannot be pulled: "
    )
    assert str(caught.value).endswith("or make one: `containers/base_image.sh`")


def test_image_without_an_engine_is_one_line(order: build.Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(InfrastructureError, match=r"containers: no image: .*; is a Docker engine running\?"):
        build.build(order)


@pytest.fixture
def derived(engine: docker.DockerClient, base_image: str) -> Iterator[Callable[[str], str]]:
    """Makes a base from the base and a shell script."""
    made: list[str] = []

    def make(script: str) -> str:
        dockerfile = f"FROM {base_image}\nCOPY script /script\nRUN sh /script\n".encode()
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as archive:
            for name, content in (("Dockerfile", dockerfile), ("script", script.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        context.seek(0)
        image, _ = engine.images.build(fileobj=context, custom_context=True, network_mode="none", forcerm=True)
        made.append(str(image.id))
        return made[-1]

    yield make
    for image in [*engine.images.list("ratchet-python"), *made]:
        try:
            engine.images.remove(getattr(image, "id", image), force=True)
        except APIError:  # not there, or the cache of a build still stands on it
            continue


HIDDEN_PYTHON = r"""
mv $(command -v python3) /usr/bin/hidden
printf '#!/bin/sh\ncase $1 in install) ln -s hidden /usr/bin/python3;; esac\n' > /usr/local/bin/apt-get
chmod +x /usr/local/bin/apt-get
"""
OLD_PYTHON = r"""
mv $(command -v python3) /usr/bin/hidden
printf '#!/bin/sh\nhidden "$@" | sed "s/3[.]11[.0-9]*/3.10.4/g"\n' > /usr/bin/python3
chmod +x /usr/bin/python3
"""


def test_image_on_a_base_without_python_gets_one_first(
    order: build.Order, engine: docker.DockerClient, derived: Callable[[str], str]
) -> None:
    bare = derived(HIDDEN_PYTHON)  # its apt-get brings the interpreter back: this machine's tests fetch nothing
    before = {found.id for found in engine.containers.list(all=True, ignore_removed=True)}
    build.build(replace(order, base=bare))
    left = [found for found in engine.containers.list(all=True, ignore_removed=True) if found.id not in before]
    assert [found.attrs["Config"]["Cmd"] for found in left if "ratchet.owner" not in found.labels] == []
    assert shell(engine, ANOTHER_TAG, "python3 -c 'import root; print(root.VERSION)'") == "1"
    assert json.loads(order.lock.read_text())[ANOTHER_TAG]["inputs"]["base"]["name"] == f"{bare} + python3"


def test_image_on_a_base_with_an_old_python_is_refused(order: build.Order, derived: Callable[[str], str]) -> None:
    with pytest.raises(InputError, match=r"its Python is 3\.10\.4; take one with Python 3\.11 or newer"):
        build.build(replace(order, base=derived(OLD_PYTHON)))


NOTHING_ELSE = """
id -u
for tool in pip pip3 gcc cc c++ make ld git curl wget; do command -v $tool; done
find / -xdev -name '*.whl' -o -xdev -path '*/site-packages/ratchet'
python3 -m pip --version 2>&1 || true
"""
TRAINS = """
import torch
x = torch.ones(3, requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist(), torch.version.cuda)
"""


def test_cpu_image_holds_no_tool_no_wheel_and_no_code_and_runs_as_nobody(
    cpu_image: str, engine: docker.DockerClient
) -> None:
    found = shell(engine, cpu_image, NOTHING_ELSE).splitlines()
    assert found == ["10001", "/opt/ratchet/bin/python3: No module named pip"]


def test_cpu_image_trains_without_a_network_on_a_read_only_root(cpu_image: str, engine: docker.DockerClient) -> None:
    assert shell(engine, cpu_image, f"python3 -c '{TRAINS}'") == "[2.0, 2.0, 2.0] None"


def test_cpu_image_is_of_a_healthy_size(cpu_image: str, engine: docker.DockerClient) -> None:
    """Measured 1.9 GB on the Debian base, of which torch 0.75 and compiled Python 0.35."""
    assert engine.images.get(cpu_image).attrs["Size"] < 2.2e9


@pytest.mark.parametrize("name", ["cpu.Dockerfile", "train.Dockerfile"])
def test_dockerfile_runs_nothing_in_its_final_stage_and_names_no_user_root(name: str) -> None:
    lines = (ROOT / "containers" / name).read_text().splitlines()
    final = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    assert not [line for line in final if line.startswith(("RUN", "ADD"))]
    assert [line for line in final if line.startswith("USER")] == ["USER 10001:10001"]
    assert build._default_base(ROOT / "containers" / name).startswith(("python:3.11", "nvidia/cuda:13"))
