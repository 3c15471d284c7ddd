"""One segment of a training: from a committed state through updates to the next checkpoint, as a step of `drive`.

Every draw is named by the seed, the epoch and the item, so a segment that a kill cut off is made again to the same
bytes, wherever its end is put. Refuses to know how a run is opened and what is published.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from ratchet.core.errors import InputError
from ratchet.core.ledger import Ledger
from ratchet.core.loop import Outcome
from ratchet.core.rundir import RunDirectory
from ratchet.loops.team import update as learning
from ratchet.loops.team.behind import StoreBehind
from ratchet.loops.team.buffer import Group, Share, group_of
from ratchet.loops.team.evaluation import by_item, estimate, evaluate
from ratchet.loops.team.likelihood import Scored, Spoken, divergences, score
from ratchet.loops.team.memory import within_memory
from ratchet.loops.team.parameters import TeamConfig
from ratchet.loops.team.rollout import Node, rollout, texts_of, training_plan
from ratchet.loops.team.state import UPDATES_FILE, State, state_from
from ratchet.loops.team.tasks.protocol import Task
from ratchet.loops.team.team import Team
from ratchet.train.mirror import RunIdentity


@dataclass(frozen=True)
class Setup:
    """What does not change in a run. `interrupted` says why to end before the last epoch, or ""."""

    config: TeamConfig
    team: Team
    task: Task
    say: Callable[[str], object] = print
    listen: Callable[[State, Sequence[Mapping[str, Any]]], object] = lambda state, rows: None
    """Called with each new state and all rows up to it; one that a kill takes back comes again, the same."""
    interrupted: Callable[[], str] = lambda: ""
    wandb: RunIdentity | None = None
    """Of a run that has none yet."""


class Training:
    """One process' part of a run: the live agents, and the committed state they stand at."""

    def __init__(self, setup: Setup, run: RunDirectory) -> None:
        self.setup, self.config, self.team, self.run = setup, setup.config, setup.team, run
        self.store = StoreBehind(run.store, self._name_checkpoint)
        self.updates = Ledger(run.path / UPDATES_FILE)
        self._live = 0
        self._wish = False
        self._seconds = 0.0  # of rollouts and updates since the last row
        self._resumed = False

    def ask_for_checkpoint(self) -> None:
        """Commit after the update under way, wherever in an epoch that is."""
        self._wish = True

    # What `drive` calls

    def step(self, seq: int, value: dict[str, Any]) -> Outcome:
        """The look at the untrained agents at seq 0, then one segment each."""
        state = state_from(value)
        state = replace(state, wandb=state.wandb or self.setup.wandb)
        if seq:
            self.settle(seq, state)
        self.store.labels["wandb"] = state.wandb
        begun = perf_counter()
        after, row = self._segment(state) if state.evaluated_untrained else self._untrained(state)
        after = replace(after, seconds=state.seconds + perf_counter() - begun)
        self._live = seq + 1
        return Outcome(after.public(), row, self._blobs(after) if after.trained else {})

    def settle(self, seq: int, state: State) -> None:
        """After checkpoint `seq` of `state` was handed to the store, maybe by another process: the live agents stand at
        it and its rows are told."""
        self._match(seq, state)
        self.setup.listen(state, self.rows(state))

    def rows(self, state: State) -> list[dict[str, Any]]:
        """The rows of the updates up to `state`. Raises InputError when the file has lost some."""
        rows = self.updates.rows()
        if len(rows) < state.updates:
            what = f"holds {len(rows)} good rows, but the checkpoint was taken after {state.updates} updates"
            raise InputError(self.updates.path, what, "restore it, or remove the run and start again")
        return rows[: state.updates]

    # Segments

    def _untrained(self, state: State) -> tuple[State, dict[str, Any]]:
        """Held-out returns before anything is learnt: what training is held against."""
        returns = evaluate(self.team, self.setup.task, len(self.setup.task.evaluation), self.config.test_samples)
        if returns:
            mean = estimate(by_item(returns), self.config.seed).mean
            self.setup.say(f"team: untrained agents earn {mean:.3f} on {len(returns)} held-out items")
        after = replace(state, evaluated_untrained=True, micro_batch_tokens=self.config.micro_batch_tokens)
        return after, {"env_step": 0, "epoch": 0, "untrained": returns}

    def _segment(self, state: State) -> tuple[State, dict[str, Any]]:
        """From `state` to the next checkpoint: an epoch's end, or earlier when time or somebody asks for it."""
        begun, self._wish = perf_counter(), False
        while True:
            state = self._advance(state)
            at_end = state.position == 0 and self._due(state.epoch)
            late = perf_counter() - begun >= self.config.checkpoint_seconds
            if at_end or late or self._wish or self.setup.interrupted():
                return state, {"env_step": state.env_step, "epoch": state.epoch, "position": state.position}

    def _due(self, epoch: int) -> bool:
        return epoch % self.config.checkpoint_interval == 0 or epoch >= self.config.num_train_epochs

    def _advance(self, state: State) -> State:
        """The next items, and the updates that they fill the buffer for; at an epoch's end what is left of it."""
        items = self.setup.task.train
        if state.position == len(items):
            state = self._learn(state, state.buffer) if state.buffer else state
            if self.config.compact_moments:
                self.team.round_moments(keep=self._due(state.epoch + 1))
            return replace(state, epoch=state.epoch + 1, position=0)
        state = self._look(state)
        chosen = range(state.position, min(state.position + self._together(state), len(items)))
        begun = perf_counter()
        roots = rollout(
            self.team, self.setup.task, [(place, items[place]) for place in chosen],
            training_plan(self.config, state.epoch),
        )  # fmt: skip
        state = self._taken_in(state, roots)
        self._seconds += perf_counter() - begun
        size = self.config.rollout_buffer_size
        while len(state.buffer) >= size:
            state = self._learn(state, state.buffer[:size])
        return state

    def _together(self, state: State) -> int:
        """Items to roll out at once: as many as surely come before the next update, and no further than the next look,
        so that they are sampled from the very weights that they would be sampled from one by one."""
        config = self.config
        actions = config.num_generations ** (1 if config.joint_mode == "aligned" else config.num_agents)
        nodes = sum(actions**turn for turn in range(config.num_turns))
        room = max(1, (config.rollout_buffer_size - len(state.buffer)) // nodes)
        if not (config.eval_interval and config.eval_num_samples):
            return room
        return min(room, config.eval_interval - state.position % config.eval_interval)

    def _look(self, state: State) -> State:
        """An interim evaluation when one is due."""
        config, task = self.config, self.setup.task
        if not (config.eval_interval and config.eval_num_samples and task.evaluation):
            return state
        if state.position % config.eval_interval:
            return state
        found = estimate(by_item(evaluate(self.team, task, config.eval_num_samples, 1)), config.seed)
        return replace(state, evaluated=found.public())

    def _taken_in(self, state: State, roots: Sequence[Node]) -> State:
        """The trees' nodes in the buffer, counted; texts of the first items kept."""
        env_step, groups, samples = state.env_step, list[Group](), list(state.samples)
        at_once = state.micro_batch_tokens
        for root in roots:
            for node in root.walk():
                env_step += len(node.rewards)
                node.env_step = env_step
                group, at_once = self._with_divergences(group_of(node), at_once)
                groups.append(group)
            if root.place < self.config.kept_items:
                samples += kept_texts(root, state.epoch + 1)
        tokens = state.tokens + sum(group.tokens for group in groups)
        after = replace(
            state, env_step=env_step, tokens=tokens, samples=tuple(samples), micro_batch_tokens=at_once
        )  # fmt: skip
        return replace(after, position=state.position + len(roots)).with_groups(groups)

    def _with_divergences(self, group: Group, at_once: int) -> tuple[Group, int]:
        """`group` with each completion's divergence from the untrained agent, where returns are to pay for it, and the
        tokens of a pass that memory allowed, at most `at_once`."""
        if not self.team.references:
            return group, at_once
        shares: list[Share] = []
        for agent, share in enumerate(group.shares):
            spoken = [Spoken(share.prompt, ids) for ids in share.completions]
            sides = self.team.policy(agent), self.team.references[self.team.speaker[agent]]
            scored: list[list[Scored]] = []
            for policy in sides:
                found, at_once = within_memory(partial(score, policy, spoken), at_once, "a divergence")
                scored.append(found)
            shares.append(replace(share, divergences=tuple(divergences(*scored))))
        return replace(group, shares=tuple(shares)), at_once

    def _learn(self, state: State, groups: Sequence[Group]) -> State:
        """One update from `groups`, the first of the buffer, and its row."""
        begun = perf_counter()
        done = learning.update(self.team, groups, (state.epoch, state.updates), state.micro_batch_tokens)
        after = replace(
            state, buffer=state.buffer[len(groups) :], updates=state.updates + 1, evaluated=None, samples=(),
            trained=state.trained or done.steps > 0, micro_batch_tokens=done.micro_batch_tokens,
        )  # fmt: skip
        looked = state.evaluated or {"mean": None, "low": None, "high": None}
        row = {
            "epoch": state.epoch + state.position / len(self.setup.task.train),
            "env_step": max(group.env_step for group in groups),
            **learning.told(done, groups),
            "eval_reward": looked["mean"], "eval_reward_low": looked["low"], "eval_reward_high": looked["high"],
            "tokens": state.tokens,
            "new_tokens": sum(group.tokens for group in groups),
            "seconds": self._seconds + perf_counter() - begun,
            "resumed": self._resumed,
            "samples": list(state.samples),
        }  # fmt: skip
        self._seconds, self._resumed = 0.0, False
        self.updates.put(state.updates, row)
        self.setup.listen(after, self.updates.rows())
        return after

    # The world and the state

    def _match(self, seq: int, state: State) -> None:
        """Make the live agents stand at `state`, which is checkpoint `seq`."""
        if self._live == seq:
            return
        if state.trained:
            for policy in range(len(self.team.policies)):
                self.team.load(policy, *[self.store.blob(name) for name in self.team.files(policy)])
            gc.collect()
        self._name_checkpoint(seq, state.public())
        self._live, self._resumed = seq, state.updates > 0
        where = f"epoch {state.epoch}, item {state.position}, env step {state.env_step}"
        self.setup.say(f"team: continues {self.run.path} at {where}")

    def _blobs(self, state: State) -> dict[str, Any]:
        compact = self.config.compact_moments and state.position == 0
        policies = range(len(self.team.policies))
        return {name: write for policy in policies for name, write in self.team.save(policy, compact=compact).items()}

    def _name_checkpoint(self, seq: int, state: Mapping[str, Any]) -> None:
        """`checkpoint-EPOCH` beside the numbered folders leads to the one that was taken at that epoch's end."""
        for link in self.run.path.glob("checkpoint-*"):
            if link.is_symlink() and not link.exists():
                link.unlink(missing_ok=True)
        link = self.run.path / f"checkpoint-{state['epoch']}"
        if state["epoch"] and state["position"] == 0:
            temp = self.run.path / f".{link.name}"
            temp.unlink(missing_ok=True)
            temp.symlink_to(self.store.path(seq).relative_to(self.run.path))
            temp.replace(link)


def kept_texts(root: Node, epoch: int) -> list[dict[str, Any]]:
    """What was said in the first branch of `root`, turn by turn."""
    found: list[dict[str, Any]] = []
    node: Node | None = root
    while node is not None:
        found.append(
            {
                "epoch": epoch, "env_step": node.env_step, "item": node.place, "turn": node.turn,
                "prompts": list(node.prompts), "completions": list(texts_of(node, node.combos[0])),
                "reward": node.rewards[0],
            }
        )  # fmt: skip
        node = node.children[0] if node.children else None
    return found
