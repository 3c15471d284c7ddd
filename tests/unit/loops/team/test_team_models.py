"""Where agents come from: folders, adapters, our own arena; and that a model's peculiarities are found out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team import session
from ratchet.loops.team.arena_model import load_arena_model
from ratchet.loops.team.generation import Ask, Limits, generate
from ratchet.loops.team.likelihood import Spoken, backward, score
from ratchet.loops.team.models import load_sources
from ratchet.loops.team.parameters import LoraParams
from ratchet.loops.team.policy import CausalLM, digest_of
from ratchet.loops.team.sampling import Sampling
from ratchet.loops.team.team import Team
from toy_training import launch, make_project


def test_sources_of_one_name_are_one_and_agents_start_equal_but_apart(tmp_path: Path) -> None:
    folder = str(toy_team.save(tmp_path / "toy ü"))
    sources = load_sources([folder, folder], 2, "float32", "cpu", toy_team.settings(tmp_path))
    assert sources[0] is sources[1]
    team = Team(sources, toy_team.config())
    first, second = (policy.trainable()["model.norm.weight"] for policy in team.policies)
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()
    assert team.digest()["models"][0] == team.digest()["models"][1]


def test_sources_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"team\.model: '.*empty' is no causal LM"):
        load_sources([str(tmp_path / "empty")], 1, "float32", "cpu", toy_team.settings(tmp_path))
    with pytest.raises(InputError, match="2 models for 3 agents"):
        load_sources(["a", "b"], 3, "float32", "cpu", toy_team.settings(tmp_path))


def test_digest_sees_one_weight_and_the_configuration() -> None:
    plain, nudged, other = toy_team.model(), toy_team.model(), toy_team.model(rms_norm_eps=1e-3)
    with torch.no_grad():
        nudged.model.norm.weight[3] += 1e-7
    assert digest_of(plain) == digest_of(toy_team.model())
    assert len({digest_of(plain), digest_of(nudged), digest_of(other)}) == 3


def test_lora_trains_adapters_alone_and_its_checkpoint_holds_nothing_else(tmp_path: Path) -> None:
    over: dict[str, Any] = {"lora": {"r": 2}, "num_train_epochs": 2, "max_new_tokens": 4, "eval_interval": 0}
    ending, run = toy_team.train(tmp_path, **over)
    names = set(load_file(run / "checkpoint-2/model-0.safetensors"))
    assert names
    assert all("lora_" in name for name in names)
    assert ending.state.trained
    again, _ = toy_team.train(tmp_path / "parts", **{**over, "num_train_epochs": 1})
    again, same = toy_team.train(tmp_path / "parts", **over)
    assert again.state.epoch == 2
    for name in ("model-0.safetensors", "optimizer-1.safetensors"):
        assert (same / "checkpoint-2" / name).read_bytes() == (run / "checkpoint-2" / name).read_bytes()


def test_lora_starts_as_the_model_and_is_the_same_for_a_seed() -> None:
    spoken = [Spoken((1, 2, 3), (4, 5))]
    plain = score(CausalLM(toy_team.model()), spoken, 64)[0].log_probs
    policies = [CausalLM(toy_team.model(), lora=LoraParams.model_validate({"r": 2}), seed=seed) for seed in (1, 1, 2)]
    assert score(policies[0], spoken, 64)[0].log_probs == pytest.approx(plain)
    first, same, other = ({name: t.detach() for name, t in p.trainable().items()} for p in policies)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert policies[0].digest() == CausalLM(toy_team.model()).digest(), "what it starts from is the model"


def test_lora_layers_that_are_not_there_are_told() -> None:
    with pytest.raises(InputError, match=r"team\.lora\.target_modules"):
        CausalLM(toy_team.model(), lora=LoraParams.model_validate({"target_modules": ["nowhere"]}))


# Our own arena


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a trained toy arena."""
    project = make_project(tmp_path_factory.mktemp("arena") / "project")
    launch(project, project / "out")
    return project


def arena_policy(arena: Path) -> tuple[CausalLM, Any]:
    source = load_arena_model(next(arena.rglob("model/spec.json")).parent, "cpu", arena / "data/tokenizer")
    return CausalLM(source.model), source


def test_arena_agent_generates_what_its_own_logits_say_whatever_its_company(arena: Path) -> None:
    policy, source = arena_policy(arena)
    asks = [Ask(tuple(source.tokenizer(text).input_ids), ("a", text), text) for text in ("the cat", "a", "green old")]
    limits = Limits(4, frozenset())
    found = generate(policy, asks, 2, Sampling(0.0), limits, 1)
    assert found == [generate(policy, [ask], 2, Sampling(0.0), limits, 1)[0] for ask in asks]
    ids = list(asks[0].prompt)
    for token in found[0][0]:
        assert token == int(source.model.experiment.logits(torch.tensor([ids]))[0, -1].argmax())
        ids.append(token)


def test_arena_agent_s_gradient_makes_a_completion_more_probable(arena: Path) -> None:
    policy, source = arena_policy(arena)
    spoken = [
        Spoken(tuple(source.tokenizer("the dog").input_ids), tuple(source.tokenizer._tokenizer.encode(" sings")), 1.0)
    ]
    before = backward(policy, spoken, 256)[0].log_prob
    with torch.no_grad():
        for tensor in policy.trainable().values():
            if tensor.grad is not None:
                tensor -= 0.01 * tensor.grad
    assert score(policy, spoken, 256)[0].log_prob > before


def test_arena_of_another_shape_is_refused(arena: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(next(arena.rglob("model/spec.json")).parent, folder)
    text = (folder / "arena.py").read_text()
    (folder / "arena.py").write_text(text.replace(".mul_(SOFT_CAP)", ".mul_(SOFT_CAP).neg_()"))
    with pytest.raises(InputError, match="is an arena of another shape"):
        load_arena_model(folder, "cpu", arena / "data/tokenizer")
    with pytest.raises(InputError, match="is no model of the arena"):
        load_arena_model(tmp_path, "cpu", arena / "data/tokenizer")


def test_arena_agents_train_as_a_team(arena: Path, tmp_path: Path) -> None:
    _, source = arena_policy(arena)
    task = toy_team.LetterTask(items=2, held_out=1)
    task.prompts = lambda item, history: ["the", "a"]  # type: ignore[method-assign]
    here, config = toy_team.settings(tmp_path), toy_team.config(num_train_epochs=1, max_new_tokens=4, eval_interval=0)
    live = session.make_session(config, [copy.copy(source)] * 2, task, here)
    with session.open_session(live, here) as run:
        ending = session.Driver(live, run, here, lambda line: None).drive()
    assert ending.state.epoch == 1
    assert ending.rows[0]["agent0_entropy"] > 0


def test_lora_of_the_last_layers_leaves_the_others_alone() -> None:
    policy = CausalLM(toy_team.model(), lora=LoraParams.model_validate({"r": 2, "last_layers": 1}))
    assert {name.split(".")[2] for name in policy.trainable()} == {"1"}


# Another architecture


def test_model_with_absolute_positions_says_and_learns_the_same_in_a_padded_batch() -> None:
    """With rotary positions a shift would go unseen."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=260, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = CausalLM(GPT2LMHeadModel(config).double())
    prompts = [(1, 2, 3, 4, 5, 6), (7,), (8, 9, 10)]
    asks = [Ask(ids, ("g", place), "") for place, ids in enumerate(prompts)]
    limits = Limits(6, frozenset(range(0, 60, 5)))
    found = generate(policy, asks, 3, Sampling(1.0), limits, 3)
    assert found == [generate(policy, [ask], 3, Sampling(1.0), limits, 3)[0] for ask in asks]
    spoken = [Spoken(ids, said) for ids, rows in zip(prompts, found, strict=True) for said in rows]
    for one, scored in zip(spoken, score(policy, spoken, 512), strict=True):
        logits = policy.model(input_ids=torch.tensor([[*one.prompt, *one.completion]])).logits[0].log_softmax(-1)
        expected = [float(logits[len(one.prompt) - 1 + n, token].detach()) for n, token in enumerate(one.completion)]
        assert scored.log_probs == pytest.approx(expected)
