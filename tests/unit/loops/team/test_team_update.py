"""An update: one optimizer step a minibatch, models in turn, nothing learnt from nothing, and faults are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team import likelihood, update
from ratchet.loops.team.buffer import Group, Share, as_json, from_json
from ratchet.loops.team.team import Team
from toy_team import group


def team(agents: int = 2, **over: Any) -> Team:
    return Team(toy_team.sources(agents), toy_team.config(num_agents=agents, **over))


def weights(team: Team) -> list[dict[str, torch.Tensor]]:
    return [{name: t.clone() for name, t in team.weights(p).items()} for p in range(len(team.policies))]


def moved(before: list[dict[str, torch.Tensor]], team: Team) -> list[bool]:
    return [any(not torch.equal(old[n], new[n]) for n in old) for old, new in zip(before, weights(team), strict=True)]


def test_update_makes_a_good_completion_more_probable_for_every_agent() -> None:
    made = team()
    spoken = [likelihood.Spoken((65, 66, 67), ids) for ids in ((70, 71), (72, 256, 73))]
    before = likelihood.score(made.policy(0), spoken, 512)
    update.update(made, [group()], ("u",), 512)
    after = likelihood.score(made.policy(0), spoken, 512)
    assert after[1].log_prob - after[0].log_prob > before[1].log_prob - before[0].log_prob


def test_update_counts_one_optimizer_step_per_model_turn_and_minibatch() -> None:
    groups = [group(turn=0), group(turn=1), group(turn=1), group(turn=1)]
    done = update.update(team(train_batch_size=2), groups, ("u",), 512)
    assert done.steps == 2 * (1 + 2)
    assert update.update(team(rollout_buffer_size=4), groups, ("u",), 512).steps == 2 * (1 + 1)
    assert update.update(team(train_batch_size=1), groups, ("u",), 512).steps == 2 * 4
    shared = update.update(team(shared_weights=True, train_batch_size=1), groups, ("u",), 512)
    assert shared.steps == 4, "agents of one model share its steps"


def test_update_from_equal_returns_changes_nothing_and_is_counted() -> None:
    made = team()
    before = weights(made)
    done = update.update(made, [group((0.1, 0.1))], ("u",), 512)
    assert (done.steps, done.skipped) == (0, 2)
    assert moved(before, made) == [False, False]
    row = update.told(done, [group((0.1, 0.1))])
    assert row["skipped_updates"] == 2
    assert row["loss"] is None
    assert row["reward_mean"] == pytest.approx(0.1)


def test_update_holds_one_model_s_gradients_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that peak memory does not grow with the number of agents by more than their weights and moments."""
    made, held = team(3), list[list[bool]]()
    plain = update.backward

    def watched(policy: Any, *arguments: Any) -> Any:
        found = plain(policy, *arguments)
        held.append([any(t.grad is not None for t in p.trainable().values()) for p in made.policies])
        return found

    monkeypatch.setattr(update, "backward", watched)
    update.update(made, [group(agents=3)], ("u",), 512)
    assert held == [[True, False, False], [False, True, False], [False, False, True]]
    assert all(t.grad is None for p in made.policies for t in p.trainable().values())


def test_update_shared_weights_average_over_the_agents() -> None:
    """One step with the mean of the gradients that the agents would have alone."""
    alone = [dict[str, torch.Tensor]() for _ in range(2)]
    for agent in range(2):
        single = team(1, train_batch_size=1)
        share = group().shares[agent]
        one = Group(0, 2, 0.5, 0.5, (share,))
        kept = _Kept(single)
        single.optimizers = [kept]  # type: ignore[list-item]
        update.update(single, [one], ("u",), 512)
        alone[agent] = kept.grads
    shared = team(shared_weights=True)
    kept = _Kept(shared)
    shared.optimizers = [kept]  # type: ignore[list-item]
    update.update(shared, [group()], ("u",), 512)
    for name, grad in kept.grads.items():
        assert torch.allclose(grad, (alone[0][name] + alone[1][name]) / 2, atol=1e-5)


class _Kept:
    def __init__(self, team: Team) -> None:
        self.team, self.grads = team, dict[str, torch.Tensor]()

    def step(self) -> None:
        self.grads = {n: t.grad.clone() for n, t in self.team.policies[0].trainable().items() if t.grad is not None}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for tensor in self.team.policies[0].trainable().values():
            tensor.grad = None


def test_update_clips_the_gradient_and_tells_its_norm_before() -> None:
    plain, clipped = team(), team(max_grad_norm=1e-3)
    found = [update.update(made, [group()], ("u",), 512).accounts[0].grad_norms[0] for made in (plain, clipped)]
    assert found[0] == pytest.approx(found[1])
    assert found[0] > 1
    sums = [made.moments(0)["model.norm.weight.exp_avg"].norm() for made in (plain, clipped)]
    assert float(sums[1]) == pytest.approx(float(sums[0]) * 1e-3 / found[0], rel=1e-3)


def test_update_nan_names_agent_and_env_step_and_makes_no_step() -> None:
    made = team()
    with torch.no_grad():
        next(iter(made.policies[1].trainable().values()))[0, 0] = float("nan")
        made.policies[1].trainable()["model.norm.weight"][:] = float("nan")
    before = weights(made)
    with pytest.raises(InputError, match=r"agent 1, env step 12: the (gradient|loss) is nan"):
        update.update(made, [group(env_step=12)], ("u",), 512)
    assert not made.moments(1)
    assert all(torch.equal(old.nan_to_num(7), new.nan_to_num(7)) for old, new in
               zip(before[1].values(), weights(made)[1].values(), strict=True))  # fmt: skip


def test_update_out_of_memory_goes_on_in_smaller_micro_batches_for_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, made = team(), team()
    update.update(expected, [group()], ("u",), 512)
    plain = update.backward

    def narrow(policy: Any, spoken: Any, tokens: int) -> Any:
        found = plain(policy, spoken[:1], tokens) if tokens > 128 else plain(policy, spoken, tokens)
        if tokens > 128:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(update, "backward", narrow)
    done = update.update(made, [group()], ("u",), 512)
    assert done.micro_batch_tokens == 128
    assert "micro-batches of 256 tokens" in capsys.readouterr().err
    for old, new in zip(weights(expected), weights(made), strict=True):
        assert all(torch.allclose(old[name], new[name], atol=1e-6) for name in old), "half a gradient was kept"


def test_update_order_in_minibatches_is_keyed_by_name() -> None:
    groups = [group((0.0, float(n + 1)), env_step=n) for n in range(6)]

    def order(name: str) -> list[float]:
        made = team(train_batch_size=1)
        return [g.return_mean for g in update._order(made, groups, (name, 0, 0))]  # pyright: ignore[reportPrivateUsage]

    assert order("a") == order("a")
    assert sorted(order("a")) == sorted(g.return_mean for g in groups)
    assert len({tuple(order(name)) for name in "abcdef"}) > 1


def test_update_reference_divergence_is_taken_off_the_returns() -> None:
    share = Share((65,), ((70,), (71,)), (1.0, 1.0), (0.0, 2.0))
    assert share.effective(0.1) == pytest.approx([1.0, 0.8])
    one = Group(0, 2, 1.0, 1.0, (share, share))
    assert update.update(team(reference_kl_enabled=True), [one], ("u",), 512).steps == 2
    assert update.update(team(reference_kl_enabled=True, reference_kl_coef=0.0), [one], ("u",), 512).steps == 0


def test_update_row_says_what_happened() -> None:
    groups = [group((0.0, 1.0), env_step=2), group((2.0, 4.0), env_step=4)]
    done = update.update(team(advantage_normalization=False), groups, ("u",), 512)
    row = update.told(done, groups)
    assert row["reward_mean"] == pytest.approx((0.5 + 3.0) / 2)
    assert row["advantage_std"] == pytest.approx((0.5 + 1.0) / 2)
    assert row["agent0_completion_length"] == pytest.approx(2.5)
    assert 0 < row["agent1_entropy"] < 5.6
    assert row["agent0_kl"] is None
    assert row["grad_norm"] == pytest.approx((row["agent0_grad_norm"] + row["agent1_grad_norm"]) / 2)


def test_update_loss_is_the_mean_of_minus_advantage_times_log_probability() -> None:
    made = team(advantage_normalization=False)
    spoken = [likelihood.Spoken((65, 66, 67), ids) for ids in ((70, 71), (72, 256, 73))]
    first, second = (one.log_prob for one in likelihood.score(made.policy(0), spoken, 512))
    done = update.update(made, [group((0.0, 1.0))], ("u",), 512)
    assert done.accounts[0].losses == pytest.approx([-(-0.5 * first + 0.5 * second) / 2], rel=1e-5)


def test_buffer_survives_its_json() -> None:
    import json

    groups = [group(), Group(1, 7, 0.5, 0.25, (Share((1,), ((2,),), (0.5,), (0.1,)),))]
    assert from_json(json.loads(json.dumps(as_json(groups)))) == groups


def test_update_completions_without_an_advantage_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradient is 0, so they need no pass; a group of one value beside another is left out whole."""
    seen: list[int] = []
    plain = update.backward

    def counted(policy: Any, spoken: Any, tokens: int) -> Any:
        seen.append(len(spoken))
        return plain(policy, spoken, tokens)

    monkeypatch.setattr(update, "backward", counted)
    update.update(team(), [group((1.0, 1.0), env_step=2), group((0.0, 1.0), env_step=4)], ("u",), 512)
    assert seen == [2, 2]
