"""A model at an endpoint as params describe it, and the client of it: `recorded(retried(metered(provider)))`.

Knows how the pieces are put together; refuses to know what is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr

from ratchet.core.errors import InputError
from ratchet.llm.client import Message, Provider, Reply, Request
from ratchet.llm.metered import CallBudget, Metered, Price
from ratchet.llm.openai_compatible import OpenAICompatible, TokenField
from ratchet.llm.recorded import Mode, Recorded, spent_in
from ratchet.llm.retried import Retried
from ratchet.params import Params
from ratchet.settings import Settings, secret, settings

KEY_VARIABLE = "RATCHET_LLM_KEY"
WHERE = frozenset({"base_url", "key_variable", "token_field", "price", "budget"})
"""Keys that say where a model is, how it is addressed and what it may cost, not what is asked."""


class Endpoint(Params):
    """A model behind an OpenAI-compatible endpoint. Its key is never here, only the variable that has it."""

    base_url: str | None = Field(None, description="address before /chat/completions; null = RATCHET_LLM_BASE_URL")
    model: str | None = Field(None, description="the model's name at the endpoint; needed for a live call")
    key_variable: str = Field(KEY_VARIABLE, description="environment variable that holds the key")
    temperature: float | None = Field(
        1.0, ge=0, strict=False, description="sampling temperature; null leaves it to the endpoint"
    )
    top_p: float | None = Field(None, gt=0, le=1, strict=False, description="nucleus share of probability; null = all")
    max_tokens: int = Field(8192, ge=1, description="tokens of a reply at most, reasoning included")
    token_field: TokenField = Field("max_tokens", description="how the endpoint calls that limit")
    extra: dict[str, Any] = Field(default_factory=dict, description="further fields of each request, as they are")
    price: Price = Field(default_factory=Price, description="what the model costs")  # pyright: ignore[reportArgumentType]
    budget: CallBudget = Field(default_factory=CallBudget, description="what one run may spend on it")  # pyright: ignore[reportArgumentType]

    def request(
        self, *messages: Message, prompt: str | None = None, seed: int | None = None, sample: int = 0
    ) -> Request:
        """A request with this model's sampling. Raises InputError when no model is named."""
        if not self.model:
            raise InputError("params.yaml", "no model is named", "set the section's `model` (docs/llm.md)")
        return Request(
            model=self.model,
            messages=messages,
            prompt=prompt,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            sample=sample,
            extra=self.extra,
        )


class Live:
    """The endpoint, looked up when it is first asked: a run that finds all in its record needs neither key nor net."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._provider: Provider | None = None

    def complete(self, request: Request) -> Reply:
        if self._provider is None:
            self._provider = self._connected(settings())
        return self._provider.complete(request)

    def _connected(self, here: Settings) -> Provider:
        base_url = self._endpoint.base_url or here.llm_base_url
        if not base_url:
            raise InputError("language model", "no endpoint is set", "set RATCHET_LLM_BASE_URL (docs/llm.md)")
        key = secret_of(self._endpoint)
        return OpenAICompatible(base_url, key, here.llm_timeout_s, self._endpoint.token_field)


def secret_of(endpoint: Endpoint) -> SecretStr | None:
    """The endpoint's key; None for one that needs none. Raises InputError when a variable that is named is not set."""
    if endpoint.key_variable == KEY_VARIABLE:
        return settings().llm_key
    key = secret(endpoint.key_variable)
    if key is None:
        raise InputError("environment", f"{endpoint.key_variable} is not set", "set it to the key that params name")
    return key


def open_client(
    endpoint: Endpoint, record: Path, mode: Mode = Mode.RECORD, provider: Provider | None = None
) -> Recorded:
    """The client of `endpoint` with its record at `record`; what the record says was spent counts to the budget.

    `provider` stands in for the endpoint itself.
    """
    here = settings()
    metered = Metered(provider or Live(endpoint), endpoint.price, endpoint.budget, spent_in(record))
    return Recorded(record, Retried(metered, here.llm_attempts, here.llm_backoff_s), mode)
