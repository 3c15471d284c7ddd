"""The border between text and token ids for one agent: prompts in, completions out, which tokens end one.

Lengths say where a completion ends, never a padding id: a tokenizer whose padding is its end of sequence is as good as
any. Refuses to know models beyond their context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import digest


class Codec:
    """One agent's tokenizer. `ends`: ids that end a completion: each end of sequence, each token that holds `stop`."""

    def __init__(
        self, tokenizer: Any, *, ends: Sequence[int] = (), stop: str | None = None, chat_template: bool = False
    ) -> None:
        self.tokenizer, self._stop, self._chat = tokenizer, stop, chat_template
        self._eos = frozenset(ends) | ({tokenizer.eos_token_id} - {None})

    @cached_property
    def ends(self) -> frozenset[int]:
        """Ids that end a completion."""
        if self._stop is None:
            return self._eos
        every = range(len(self.tokenizer))
        texts = self.tokenizer.batch_decode([[token] for token in every])
        return self._eos | {token for token, text in zip(every, texts, strict=True) if self._stop in text}

    def encode(self, prompt: str, where: object) -> list[int]:
        """The ids of `prompt`. A text that brings its first special token along does not get it twice.

        Raises InputError naming `where` for an empty prompt, or one that the chat template refuses.
        """
        if self._chat:
            prompt = self._templated(prompt, where)
        bos = getattr(self.tokenizer, "bos_token", None)
        ids = self.tokenizer(prompt, add_special_tokens=not (self._chat or (bos and prompt.startswith(bos)))).input_ids
        if not ids:
            raise InputError(where, f"the prompt {prompt[:60]!r} has no token", "give each agent something to go on")
        return list(ids)

    def _templated(self, prompt: str, where: object) -> str:
        messages = [{"role": "user", "content": prompt}]
        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is code of the model's author
            what = f"the tokenizer's chat template fails: {error}"
            raise InputError(where, what, "set team.chat_template to false") from error

    def decode(self, ids: Sequence[int]) -> str:
        """What a completion says: its text up to `stop`, without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text if self._stop is None else text.partition(self._stop)[0]

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether a completion ended by itself, not at the limit of its length."""
        return bool(ids) and ids[-1] in self.ends

    def digest(self) -> str:
        """Hash of what decides ids: vocabulary, merges, special tokens, template."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        content: Mapping[str, Any] = {
            "tokenizer": backend.to_str() if backend is not None else self.tokenizer.get_vocab(),
            "template": getattr(self.tokenizer, "chat_template", None),
            "special": {name: str(token) for name, token in self.tokenizer.special_tokens_map.items()},
        }
        return digest(content)
