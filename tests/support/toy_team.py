"""A toy of the team loop: a random two-layer Llama over bytes, made without a network, and tasks with plain rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

EOS = "<eos>"
TEMPLATE = (
    "{% for m in messages %}<user>{{ m['content'] }}<eos>{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


def tokenizer(*, shifted: bool = False, pad: str = EOS) -> PreTrainedTokenizerFast:
    """Bytes and four special tokens; `shifted`: the same bytes under other ids."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = letters[100:] + letters[:100] if shifted else letters
    special = [EOS, "<user>", "<bot>", "<pad>"]
    vocabulary = {text: number for number, text in enumerate([*letters, *special])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=EOS, pad_token=pad, additional_special_tokens=["<user>", "<bot>", "<pad>"]
    )
    made.chat_template = TEMPLATE
    return made


def model(seed: int = 0, *, dtype: torch.dtype = torch.float32, tied: bool = True, **over: Any) -> LlamaForCausalLM:
    """A random Llama of some 30,000 weights."""
    settings: dict[str, Any] = {
        "vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "tie_word_embeddings": tied, "initializer_range": 0.3, "eos_token_id": 256, "bos_token_id": None,
        "pad_token_id": 256,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = LlamaForCausalLM(LlamaConfig(**settings | over)).to(dtype).eval()
    made.generation_config.eos_token_id = [256, *range(0, 256, 10)]  # many ends, so that completions differ in length
    return made


def save(folder: Path, seed: int = 0, **over: Any) -> Path:
    """The toy as a folder that `from_pretrained` reads."""
    model(seed, **over).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def share_of(letter: str, text: str) -> float:
    """The share of `letter` among the characters of `text`."""
    return text.count(letter) / max(1, len(text))


class LetterTask:
    """Each agent is to say its letter: the reward is the product-free mean of the shares, so credit is shared."""

    name = "letters"

    def __init__(self, items: int = 6, held_out: int = 4, agents: int = 2, low: str = "abcdefgh") -> None:
        self.train = [{"prompt": f"say {n}:"[: 5 + n % 3]} for n in range(items)]
        self.evaluation = [{"prompt": f"say {n}!"} for n in range(held_out)]
        self.agents, self.low = agents, low

    def prompts(self, item: Mapping[str, Any], history: Sequence[Any]) -> list[str]:
        said = "".join(text[:3] for turn in history for text in turn.completions)
        return [f"{item['prompt']}{agent}{said}" for agent in range(self.agents)]

    def reward(self, completions: list[list[str]], items: list[Mapping[str, Any]]) -> list[float]:
        rows = zip(*completions, strict=True)
        return [sum(sum(c.islower() for c in text) / max(1, len(text)) for text in row) for row in rows]


def sources(agents: int = 2, **over: Any) -> list[Any]:
    """Untrained toys, one per agent, all of one model."""
    from ratchet.loops.team.team import Source

    one = Source(model(**over), tokenizer())
    return [one] * agents


CONFIG: dict[str, Any] = {
    "num_turns": 1, "num_train_epochs": 2, "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, "top_k": None,
    "agent_learning_rate": 1e-2, "logging_steps": 1, "eval_interval": 3, "test_samples": 2,
}  # fmt: skip


def config(**over: Any) -> Any:
    """A config that trains a toy in seconds."""
    from ratchet.loops.team.parameters import TeamConfig

    return TeamConfig.model_validate(CONFIG | over)


def settings(where: Path, **over: Any) -> Any:
    """Settings of a run below `where`."""
    from ratchet.settings import Settings

    return Settings.model_validate({"runs": where / "runs", "wandb": "disabled", "threads": 1, "device": "cpu", **over})


def train(
    where: Path, *, task: Any = None, sources_: Any = None, say: Any = None, here: Any = None, **over: Any
) -> Any:
    """One process' life: (ending, run directory)."""
    from ratchet.loops.team import session

    made = config(**over)
    here = here or settings(where)
    task = task or LetterTask(agents=made.num_agents)
    live = session.make_session(made, sources_ or sources(made.num_agents), task, here)
    with session.open_session(live, here) as run:
        return session.Driver(live, run, here, say or (lambda line: None)).drive(), run.path


def group(returns: tuple[float, ...] = (0.0, 1.0), *, turn: int = 0, env_step: int = 2, agents: int = 2) -> Any:
    """One node's group of two completions, the second longer."""
    from ratchet.loops.team.buffer import Group, Share

    shares = tuple(Share((65, 66, 67 + agent), ((70, 71), (72, 256, 73)), returns) for agent in range(agents))
    mean = sum(returns) / len(returns)
    return Group(turn, env_step, mean, mean, shares)
