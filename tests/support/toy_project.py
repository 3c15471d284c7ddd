"""A toy DVC project in a real git repository: four stages that copy a number on, two of them independent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

PROJECT = Path(__file__).resolve().parents[2]


class Toy:
    """A project with the stages a → (left, right) → end; `left` and `right` are independent."""

    def __init__(self, root: Path, home: Path, api: str | None = None) -> None:
        """`home`: Prefect's. `api`: a server's address; without one each flow starts its own."""
        self.root, self.home, self.api = root, home, api
        root.mkdir(parents=True)
        self.write("params.yaml", "a: {number: 1}\nleft: {fail: false, sleep: 0}\nright: {}\nend: {}\n")
        self.write("work.py", _WORK)
        self.write("dvc.yaml", _DVC_YAML)
        self.write(".gitignore", "/.ratchet/\n/out/\n__pycache__/\n")
        self.sh("git", "init", "-q", "-b", "main")
        self.sh(sys.executable, "-m", "dvc", "init", "-q")
        self.sh(sys.executable, "-m", "dvc", "config", "core.analytics", "false")
        self.commit()

    def write(self, name: str, text: str) -> None:
        """Put `text` (dedented) into the file `name`."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")

    def sh(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the project."""
        return subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, text=True, check=check, timeout=240
        )

    def commit(self) -> None:
        """Commit everything."""
        self.sh("git", "add", "-A")
        who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        self.sh("git", *who, "commit", "-q", "-m", "state")

    def environment(self) -> dict[str, str]:
        """No activated environment, this checkout importable, one Prefect home and server."""
        bare = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "VIRTUAL_ENV"))}
        bare["PATH"] = os.pathsep.join(p for p in bare["PATH"].split(os.pathsep) if ".venv" not in p)
        server = {"PREFECT_API_URL": self.api} if self.api else {}
        return {**bare, **server, "PYTHONPATH": str(PROJECT), "PREFECT_HOME": str(self.home)}

    @staticmethod
    def repro(root: Path, *stages: str) -> None:
        """`dvc repro` in `root`, with this interpreter as `python`."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        command = [sys.executable, "-m", "dvc", "repro", "-q", *stages]
        subprocess.run(command, cwd=root, env={**os.environ, "PATH": path}, check=True, timeout=240)

    def flow(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m flows.pipeline` here."""
        return self.sh(sys.executable, "-m", "flows.pipeline", *arguments, check=False)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """The flow as a living process in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "flows.pipeline", *arguments], cwd=self.root, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


_DVC_YAML = """
    stages:
      a:
        desc: Write the number
        cmd: python work.py a
        deps: [work.py]
        params: [a]
        outs: [out/a]
      left:
        cmd: python work.py left
        deps: [work.py, out/a]
        params: [left]
        outs: [out/left]
      right:
        cmd: python work.py right
        deps: [work.py, out/a]
        params: [right]
        outs: [out/right]
        meta: {retries: 0, timeout: 120}
      end:
        cmd: python work.py end
        deps: [work.py, out/left, out/right]
        params: [end]
        metrics: [metrics/end.json: {cache: false}]
    """

_WORK = '''
    """The stages of the toy project."""
    import json, pathlib, subprocess, sys, time
    import yaml

    name = sys.argv[1]
    params = yaml.safe_load(open("params.yaml"))[name]
    out = pathlib.Path("out"); out.mkdir(exist_ok=True)
    print(f"step 1/2 of {name} in ü", flush=True)
    if params.get("sleep"):
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({params['sleep']})"])
        pathlib.Path(".ratchet").mkdir(exist_ok=True)
        pathlib.Path(".ratchet/pids").write_text(f"{__import__('os').getpid()} {child.pid}")
        child.wait()
    if params.get("fail"):
        print("left: fail = True; set it to false", file=sys.stderr)
        sys.exit(2)
    if name == "a":
        (out / "a").write_text(str(params["number"]))
    elif name in ("left", "right"):
        time.sleep(1.5)
        (out / name).write_text((out / "a").read_text() + name)
    else:
        pathlib.Path("metrics").mkdir(exist_ok=True)
        value = {"left": (out / "left").read_text(), "right": (out / "right").read_text()}
        pathlib.Path("metrics/end.json").write_text(json.dumps(value))
'''
