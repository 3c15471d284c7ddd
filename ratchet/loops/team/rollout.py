"""What the agents say: for each item a tree of nodes, one level a turn, and a reward for every joint action.

All nodes of a turn, of all items, are generated in one batch per agent. Refuses to know how it is learnt from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ratchet.loops.team.concurrency import at_once
from ratchet.loops.team.generation import Ask, Ids, Limits, generate
from ratchet.loops.team.parameters import JointMode, TeamConfig
from ratchet.loops.team.returns import Combo, discounted, joint_actions
from ratchet.loops.team.rewards import next_prompts, prompts_of, rewards_of
from ratchet.loops.team.sampling import Sampling
from ratchet.loops.team.tasks.protocol import Item, Task, Turn, at_turn
from ratchet.loops.team.team import Team


@dataclass(frozen=True)
class Said:
    """What one agent said at one node: G completions of one prompt."""

    prompt: Ids
    completions: tuple[Ids, ...]
    texts: tuple[str, ...]


@dataclass
class Node:
    """One turn of one branch: the agents' prompts, and then what they said and earned. `place`: of the item in its
    list; `path`: the joint actions that led here."""

    place: int
    item: Item
    prompts: list[str]
    history: tuple[Turn, ...] = ()
    path: tuple[int, ...] = ()
    said: list[Said] = field(default_factory=list[Said])
    combos: list[Combo] = field(default_factory=list[Combo])
    rewards: list[float] = field(default_factory=list[float])
    children: list[Node | None] = field(default_factory=list["Node | None"])
    returns: list[float] = field(default_factory=list[float])
    env_step: int = 0

    @property
    def turn(self) -> int:
        """Counted from 0."""
        return len(self.path)

    def walk(self) -> Iterator[Node]:
        """This node, then each child's subtree: the order in which joint actions are counted."""
        yield self
        for child in self.children:
            if child is not None:
                yield from child.walk()


@dataclass(frozen=True)
class Plan:
    """How a rollout goes. `name` keys its draws; `copies(turn)` completions per prompt; `stops` ends a branch early."""

    name: tuple[object, ...]
    copies: Callable[[int], int]
    mode: JointMode
    discount: float
    stops: float | None = None


def training_plan(config: TeamConfig, epoch: int) -> Plan:
    """Groups of `num_generations` at every turn."""
    return Plan(
        ("rollout", epoch), lambda turn: config.num_generations, config.joint_mode, config.discount,
        config.early_termination_threshold,
    )  # fmt: skip


def evaluation_plan(samples: int) -> Plan:
    """`samples` independent episodes per item, each to its end; an episode's return is the sum of its rewards."""
    return Plan(("evaluation",), lambda turn: samples if turn == 0 else 1, JointMode.ALIGNED, 1.0)


def rollout(team: Team, task: Task, items: Sequence[tuple[int, Item]], plan: Plan) -> list[Node]:
    """The trees of `items` (place in the dataset, item), with rewards and returns. Raises InputError for wrong prompts
    and rewards."""
    agents = team.agents
    level = roots = [Node(place, item, prompts_of(task, item, (), agents, f"item {place}")) for place, item in items]
    for turn in range(team.config.num_turns):
        _speak(team, level, plan)
        _reward(task, level, plan)
        if turn + 1 < team.config.num_turns:
            level = [child for node in level for child in _branches(task, node, plan, agents)]
        if not level:
            break
    for root in roots:
        _return(root, plan.discount)
    return roots


def _speak(team: Team, level: Sequence[Node], plan: Plan) -> None:
    """Fill in `said` for every agent. Models on the CPU speak at once, agents of one model in turn."""

    def of_model(policy: int) -> dict[int, list[Said]]:
        return {agent: _said(team, agent, level, plan) for agent in team.speakers(policy)}

    models = range(len(team.policies))
    if team.policies[0].device.type == "cpu":
        found = at_once([partial(of_model, model) for model in models])
    else:
        found = [of_model(model) for model in models]
    heard = {agent: said for each in found for agent, said in each.items()}
    for place, node in enumerate(level):
        node.said = [heard[agent][place] for agent in range(team.agents)]


def _said(team: Team, agent: int, level: Sequence[Node], plan: Plan) -> list[Said]:
    """What `agent` says at each node of `level`."""
    config, codec = team.config, team.codecs[agent]
    sampling = Sampling(config.temperature, config.top_p, config.top_k)
    limits = Limits(config.max_new_tokens, codec.ends, config.generation_rows)
    asks = [_ask(team, node, agent, plan) for node in level]
    written = generate(team.policy(agent), asks, plan.copies(level[0].turn), sampling, limits, config.seed)
    return [
        Said(ask.prompt, tuple(completions), tuple(codec.decode(ids) for ids in completions))
        for ask, completions in zip(asks, written, strict=True)
    ]


def _ask(team: Team, node: Node, agent: int, plan: Plan) -> Ask:
    where = f"agent {agent}, item {node.place}, turn {node.turn}"
    ids = team.codecs[agent].encode(node.prompts[agent], where)
    return Ask(tuple(ids), (*plan.name, node.place, agent, list(node.path)), where)


def _reward(task: Task, level: Sequence[Node], plan: Plan) -> None:
    """Fill in `combos` and `rewards`, with one call for all nodes."""
    joint: list[tuple[str, ...]] = []
    items: list[Item] = []
    for node in level:
        node.combos = joint_actions(len(node.said), len(node.said[0].texts), plan.mode)
        joint += [texts_of(node, combo) for combo in node.combos]
        items += [at_turn(node.item, node.history)] * len(node.combos)
    places = sorted({node.place for node in level})
    where = f"turn {level[0].turn} of items {places[0]} to {places[-1]}"
    rewards = rewards_of(task, [list(texts) for texts in zip(*joint, strict=True)], items, where)
    for node in level:
        node.rewards, rewards = rewards[: len(node.combos)], rewards[len(node.combos) :]


def texts_of(node: Node, combo: Combo) -> tuple[str, ...]:
    """What each agent said in one joint action."""
    return tuple(said.texts[place] for said, place in zip(node.said, combo, strict=True))


def _branches(task: Task, node: Node, plan: Plan, agents: int) -> list[Node]:
    """The nodes that follow; `children` has one entry per joint action, or none where the branch ends early."""
    if plan.stops is not None and sum(node.rewards) / len(node.rewards) > plan.stops:
        return []
    for action, (combo, reward) in enumerate(zip(node.combos, node.rewards, strict=True)):
        history = (*node.history, Turn(tuple(node.prompts), texts_of(node, combo), reward))
        where = f"item {node.place}, turn {node.turn}"
        prompts = next_prompts(task, node.item, history, agents, where)
        child = None if prompts is None else Node(node.place, node.item, prompts, history, (*node.path, action))
        node.children.append(child)
    return [child for child in node.children if child is not None]


def _return(node: Node, discount: float) -> list[float]:
    children = node.children or [None] * len(node.rewards)
    following = [None if child is None else _return(child, discount) for child in children]
    node.returns = discounted(node.rewards, following, discount)
    return node.returns
