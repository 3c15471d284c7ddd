"""`ratchet push` and `ratchet pull`: outputs to a DVC remote and back. DVC does it; what it lacks is said on one line.

Refuses to know what an output is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from ratchet.commands.project import enter_project, say_next
from ratchet.core.errors import InfrastructureError, InputError, RatchetError
from ratchet.remotes import is_clients

if TYPE_CHECKING:
    from dvc.repo import Repo

ADD_FOLDER = "dvc remote add -d store /path/to/folder"
ADD_S3 = "dvc remote add -d store s3://BUCKET/PATH"
SHOWN = 3
KINDS = ("fetched", "added", "modified", "deleted")
OWN_EXTRAS = ("s3",)
UNSAVED = "unsaved files"


def push(targets: Sequence[str], *, remote: str | None) -> None:
    """Bring the outputs of `targets` (stages or paths; none: all) from the cache to a remote. Raises RatchetError."""
    from dvc.repo import Repo

    with one_line_errors("push"), Repo(str(enter_project())) as repo:
        where = _place(repo, remote, "push")
        _check(repo, targets, "push")
        count = sum(repo.push(targets=one, remote=remote) for one in _in_turn(targets))
    print(f"pushed {count} files to {where}" if count else f"nothing to push: {where} has it all")
    say_next("git push, then in another clone: ratchet pull")


def pull(targets: Sequence[str], *, remote: str | None) -> None:
    """Bring the outputs of `targets` that dvc.lock names from a remote into the project. Raises RatchetError."""
    from dvc.repo import Repo

    with one_line_errors("pull"), Repo(str(enter_project())) as repo:
        where = _place(repo, remote, "pull")
        _check(repo, targets, "pull")
        told = [repo.pull(targets=one, remote=remote)["stats"] for one in _in_turn(targets)]
    fetched, *changed = (sum(stats.get(kind, 0) for stats in told) for kind in KINDS)
    print(f"fetched {fetched} files from {where}; outputs changed here: {sum(changed)}")
    say_next("ratchet status", "ratchet report --open")


def _in_turn(targets: Sequence[str]) -> list[str | None]:
    """One call each: of a stage and a path named together DVC 3.67 sends only the stage."""
    return [*targets] or [None]


def _place(repo: Repo, remote: str | None, verb: str) -> str:
    """The remote's name and address. Raises what DVC does when there is none, or its package is missing."""
    found = repo.cloud.get_remote(name=remote, command=verb)
    return f"{found.name} ({found.fs.unstrip_protocol(found.path) if found.fs.protocol != 'local' else found.path})"


def _check(repo: Repo, targets: Sequence[str], verb: str) -> None:
    """Raise InputError for a target that is no stage, no output and nothing inside one."""
    outs = [out.fs_path for out in repo.index.outs if out.use_cache]
    known = [*(str(getattr(stage, "name", "")) for stage in repo.index.stages), *map(repo.fs.relpath, outs)]
    for target in targets:
        path = repo.fs.abspath(target)
        if target in known or any(path == out or repo.fs.isin(path, out) for out in outs):
            continue
        near = difflib.get_close_matches(target, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "name a stage of dvc.yaml, or a path below data/"
        raise InputError(verb, f"{target!r} is no stage and no output", hint)


@contextmanager
def one_line_errors(verb: str) -> Iterator[None]:
    """What DVC raises inside becomes a RatchetError that says what to type."""
    from dvc.config import NoRemoteError, RemoteNotFoundError
    from dvc.exceptions import CheckoutError, DownloadError, DvcException, UploadError
    from dvc_objects.fs.errors import RemoteMissingDepsError

    try:
        yield
    except RatchetError:
        raise
    except NoRemoteError:
        do = f"type `{ADD_FOLDER}`, or `{ADD_S3}` after `{install_line('s3')}`; or say which with --remote"
        raise InputError(verb, "no remote is configured that is the default", do) from None
    except RemoteNotFoundError as error:
        raise InputError(verb, str(error), f"see `dvc remote list`, or type `{ADD_FOLDER}`") from None
    except (ImportError, RemoteMissingDepsError) as error:
        package = re.search(r"dvc-(\w+)", str(error))
        scheme = package[1] if package else str(getattr(error, "protocol", "s3"))
        what = f"a remote of {scheme} needs a package that is not installed"
        raise InputError(verb, what, f"type `{install_line(scheme)}`") from None
    except (CheckoutError, DownloadError) as error:
        what = f"the remote lacks {_lacking(error)}"
        do = "type `ratchet push` where they were made, or make them here: `ratchet run`"
        raise InfrastructureError(verb, what, do) from None
    except (UploadError, OSError) as error:
        raise InfrastructureError(verb, f"{error}", "mend the remote or the disk, and type it again") from None
    except DvcException as error:
        if UNSAVED in str(error):
            what = f"would overwrite work that is in no cache: {', '.join(str(error).splitlines()[1:][:SHOWN])}"
            do = "move away what you want to keep and remove the rest, or take it up: `dvc commit`"
            raise InputError(verb, what, do) from None
        raise InputError(verb, f"DVC refuses: {_causes(error)}", "mend what it names") from None
    except Exception as error:
        if not is_clients(error):
            raise
        raise InfrastructureError(verb, f"the remote answers: {error}", "mend it, and type it again") from None


def install_line(scheme: str) -> str:
    """The line that installs what DVC needs for remotes of `scheme`: an extra of ours, or what this DVC asks for."""
    if scheme in OWN_EXTRAS:
        return f"pip install -c constraints-extras.txt -e '.[{scheme}]'"
    for line in metadata.requires("dvc") or []:
        package, _, marker = line.partition(";")
        if marker.replace("'", '"').strip() == f'extra == "{scheme}"':
            return f"pip install '{package.strip()}'"
    return f"pip install 'dvc[{scheme}]'"


def _lacking(error: Exception) -> str:
    """The first outputs that an error of DVC names, and how many more there are."""
    paths = [str(path) for path in getattr(error, "target_infos", [])]
    if not paths:
        return f"{getattr(error, 'amount', 'some')} files"
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more


def _causes(error: BaseException) -> str:
    said = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        said.append(str(error))
    return ": ".join(dict.fromkeys(filter(None, said)))
