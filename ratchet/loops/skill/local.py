"""The embedded agent: SmolLM2-135M in completion format, many questions at once, the document read once.

The document's keys and values are computed for one row and shared by all questions asked under it. Greedy. Refuses to
know how answers are scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ratchet.llm import smollm2
from ratchet.loops.skill.records import Answer, Task, Usage
from ratchet.loops.skill.update import shown


class LocalTarget:
    """The model with its cached prefix. `batch_items` and the thread count decide the last bits of its logits."""

    def __init__(self, cache: Path, *, batch_items: int, max_new_tokens: int) -> None:
        self.tokenizer, self.model = smollm2.load(cache)
        self._batch, self._new = batch_items, max_new_tokens
        self._line_end = self.tokenizer.encode("\n", add_special_tokens=False)[-1]
        self._start: int = self.tokenizer.convert_tokens_to_ids("<|endoftext|>")
        self._prefix: tuple[str, list[int], Any] = ("", [], None)

    def answer(self, skill: str, tasks: Sequence[Task], sample: int) -> list[Answer]:
        """One answer per task, in their order: the first line that the model continues `Q: …\\nA:` with."""
        found: list[Answer] = []
        for at in range(0, len(tasks), self._batch):
            found += self._answer(prefix_text(skill), tasks[at : at + self._batch])
        return found

    @torch.inference_mode()
    def _answer(self, prefix: str, tasks: Sequence[Task]) -> list[Answer]:
        length, keys = self._read(prefix)
        asked = [self.tokenizer.encode(question_text(task), add_special_tokens=False) for task in tasks]
        said = self._continue(length, self._shared(keys, len(asked)), asked)
        texts = self.tokenizer.batch_decode(said, skip_special_tokens=True)
        return [
            Answer(text.strip(), Usage(1, length + len(ids), len(new)))
            for text, ids, new in zip(texts, asked, said, strict=True)
        ]

    def _read(self, prefix: str) -> tuple[int, Any]:
        """Tokens of the prefix, and its keys and values [1, heads, tokens, width] per layer; kept."""
        if self._prefix[0] != prefix or self._prefix[2] is None:
            ids = [self._start, *self.tokenizer.encode(prefix, add_special_tokens=False)]
            read = self.model(input_ids=_tensor([ids]), use_cache=True, logits_to_keep=1)
            self._prefix = prefix, ids, [(layer.keys, layer.values) for layer in read.past_key_values.layers]
        return len(self._prefix[1]), self._prefix[2]

    def _shared(self, keys: Any, rows: int) -> Any:
        """A cache for `rows` rows that all have read the same prefix."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (key, value) in enumerate(keys):
            cache.update(key.expand(rows, -1, -1, -1), value.expand(rows, -1, -1, -1), layer)
        return cache

    def _continue(self, prefix: int, cache: Any, asked: list[list[int]]) -> list[list[int]]:
        """Greedy tokens of each row up to the end of its line."""
        longest = max(map(len, asked))
        pads = [longest - len(ids) for ids in asked]
        tokens = _tensor([[self._start] * pad + ids for pad, ids in zip(pads, asked, strict=True)])
        mask = _tensor([[1] * prefix + [0] * pad + [1] * (longest - pad) for pad in pads])
        places = prefix + (mask[:, prefix:].cumsum(-1) - 1).clamp(min=0)
        said: list[list[int]] = [[] for _ in asked]
        open_rows = set(range(len(asked)))
        for _ in range(self._new):
            logits = self.model(
                input_ids=tokens, attention_mask=mask, position_ids=places, cache=cache, use_cache=True,
                logits_to_keep=1,
            ).logits  # fmt: skip
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            for row, token in enumerate(tokens[:, 0].tolist()):
                if row in open_rows and token in (self._line_end, self.tokenizer.eos_token_id, self._start):
                    open_rows.discard(row)
                elif row in open_rows:
                    said[row].append(token)
            if not open_rows:
                break
            mask = torch.cat([mask, torch.ones_like(tokens)], -1)
            places = places[:, -1:] + 1
        return said


def _tensor(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def prefix_text(skill: str) -> str:
    """What stands before every question."""
    document = shown(skill)
    return f"{document}\n\n" if document else ""


def question_text(task: Task) -> str:
    """One question, to be continued."""
    return f"Q: {' '.join(task.question.split())}\nA:"
