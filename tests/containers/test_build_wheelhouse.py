"""Which wheels an image gets: those that the base's Python needs, not the one that fetches them. No engine needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from image_orders import order_of
from ratchet.core.errors import InfrastructureError, InputError
from toy_wheels import make_wheel
from wheelhouse import PROBE, Base, Store, closure, read_pins, requirements_text


def base_of(python: str = "3.11.2", glibc: str = "2.36") -> Base:
    """A base as it would describe itself."""
    ours = json.loads(subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True).stdout)
    short = ".".join(python.split(".")[:2])
    there = {"python_full_version": python, "python_version": short, "implementation_version": python}
    markers = {**ours["markers"], **there, "platform_machine": "x86_64", "sys_platform": "linux", "os_name": "posix"}
    return Base.read(json.dumps({"glibc": glibc, "markers": markers}))


def store_of(folder: Path, pins: dict[str, str], base: Base | None = None) -> Store:
    """A store that pip may fill from the folder `index` alone."""
    index = folder / "index"
    index.mkdir(exist_ok=True)
    known = {canonicalize_name(name): version for name, version in pins.items()}
    return Store(folder / "store", base or base_of(), known, ["--no-index", f"--find-links={index}"])


def names(wheels: list) -> list[str]:
    return [wheel.name for wheel in wheels]


@pytest.mark.parametrize(("python", "taken"), [("3.11.2", ["old", "root"]), ("3.11.3", ["root"])])
def test_closure_marker_is_judged_by_the_python_of_the_base(python: str, taken: list[str], tmp_path: Path) -> None:
    make_wheel(tmp_path / "store", "root", "1", needs=('old; python_full_version < "3.11.3"',))
    make_wheel(tmp_path / "store", "old", "2")
    store = store_of(tmp_path, {"root": "1", "old": "2"}, base_of(python))
    assert names(closure([Requirement("root")], store)) == taken


def test_closure_extras_are_followed_even_when_asked_for_after_the_package(tmp_path: Path) -> None:
    make_wheel(tmp_path / "store", "root", "1", needs=("lib", "other"))
    make_wheel(tmp_path / "store", "other", "1", needs=("lib[fast]",))
    make_wheel(tmp_path / "store", "lib", "1", needs=('speed; extra == "fast"', 'never; extra == "slow"'))
    make_wheel(tmp_path / "store", "speed", "1", needs=("root",))  # a circle must end
    store = store_of(tmp_path, dict.fromkeys(("root", "other", "lib", "speed"), "1"))
    assert names(closure([Requirement("root")], store)) == ["lib", "other", "root", "speed"]


def test_store_takes_the_wheel_that_fits_the_base_best_and_none_that_does_not(tmp_path: Path) -> None:
    for tag in ("cp311-cp311-manylinux_2_17_x86_64", "py3-none-any", "cp312-cp312-manylinux_2_17_x86_64"):
        make_wheel(tmp_path / "store", "lib", "1", tag=tag)
    make_wheel(tmp_path / "store", "new", "1", tag="cp311-cp311-manylinux_2_39_x86_64")
    store = store_of(tmp_path, {"lib": "1", "new": "1"})
    assert store.get([canonicalize_name("lib")])[0].path.name == "lib-1-cp311-cp311-manylinux_2_17_x86_64.whl"
    with pytest.raises(InfrastructureError, match="No matching distribution found for new==1"):
        store.get([canonicalize_name("new")])


def test_store_fetches_the_wheel_for_the_base_not_for_the_python_that_runs(tmp_path: Path) -> None:
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.11"
    tag = f"cp{other.replace('.', '')}"
    for each in (tag, f"cp{sys.version_info[0]}{sys.version_info[1]}"):
        make_wheel(tmp_path / "index", "lib", "1", tag=f"{each}-{each}-manylinux2014_x86_64")
    store = store_of(tmp_path, {"lib": "1"}, base_of(f"{other}.1"))
    assert store.get([canonicalize_name("lib")])[0].path.name == f"lib-1-{tag}-{tag}-manylinux2014_x86_64.whl"


def test_store_pin_without_its_local_part_finds_the_build_that_the_index_has(tmp_path: Path) -> None:
    make_wheel(tmp_path / "store", "torch", "2.13.0+cpu")
    wheels = store_of(tmp_path, {"torch": "2.13.0"}).get([canonicalize_name("torch")])
    assert requirements_text(wheels).startswith("torch==2.13.0+cpu --hash=sha256:")


def test_closure_without_a_pin_is_refused_with_its_name(tmp_path: Path) -> None:
    make_wheel(tmp_path / "store", "root", "1", needs=("stray>=2",))
    with pytest.raises(InputError, match="stray is pinned nowhere; add a line to "):
        closure([Requirement("root")], store_of(tmp_path, {"root": "1"}))


def test_pins_another_line_than_a_pin_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("# why\na==1\nB_b==2+x  # note\n")
    assert read_pins([file]) == {"a": "1", "b-b": "2+x"}
    file.write_text("a==1\nb>=2\n")
    with pytest.raises(InputError, match=r"constraints.txt:2: 'b>=2' is no pin"):
        read_pins([file])


def test_order_of_tests_and_benches_has_the_flags_of_this_machines_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FLAGS", "--no-index '--find-links=a folder'")
    assert order_of("cpu", None).pip_flags == ["--no-index", "--find-links=a folder"]
    monkeypatch.delenv("PIP_FLAGS")
    assert order_of("store", None).pip_flags == []
