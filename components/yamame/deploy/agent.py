"""A trained agent that acts outside of training: one observation in, one action out, for one stream
or for many.

What it decides is what an evaluation decides (`yamame.evaluation.evaluate`), timestep by timestep;
its memory, the previous action and reward, and the time are its own business.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Composite, MultiOneHot, OneHot, TensorSpec

from yamame.checks import require
from yamame.deploy.build import build_agent, check_device, for_acting, load_weights
from yamame.deploy.folder import write_folder
from yamame.deploy.inputs import Inputs, read_action, read_flags, read_names, read_reward
from yamame.deploy.saved import SavedAgent
from yamame.deploy.sessions import Sessions
from yamame.deploy.step import ActingStep

_ALONE = (None,)
"""The one session of an agent that is given no names."""


class DeployedAgent:
    """Acts from its history, which it keeps by itself. `yamame.load` makes it.

    A loop over one stream::

        agent.reset()
        action = agent.act(observation)
        while True:
            observation, reward, done = ...             # the first observation of the next episode where done
            action = agent.act(observation, reward=reward, done=done)

    Args:
        saved: What was read.
        gamma: The discount factor whose policy acts, one of the trained ones; None for the last.
        greedy: Act by the most probable action instead of sampling; None: as in the evaluations of
            its training.
        seed: Of the samples.
        context_length: Timesteps that it remembers, where the encoder lets that be chosen; None: as
            in training.
        max_sessions: Most sessions at a time; None for as many as there is memory for.
        device: Where it computes.
        trust: Packages whose classes the file may name beside ours, as ``["mylab."]``.

    Attributes:
        saved: What was read.
        step: One decision as a function of tensors.
        greedy: Whether it takes the most probable action.
        gammas: The discount factors it has policies for.
        gamma: The one that acts.
        horizon: Length of an episode of training in timesteps, where the agent is told the time.
        observation_spec: What `act` takes, of one stream.
        action_spec: What `act` gives, of one stream.

    Raises:
        UsageError: The file describes no agent, or names what it must not; an option does not fit
            it.
    """

    def __init__(
        self,
        saved: SavedAgent,
        *,
        gamma: float | None = None,
        greedy: bool | None = None,
        seed: int = 0,
        context_length: int | None = None,
        max_sessions: int | None = None,
        device: str | torch.device = "cpu",
        trust: Sequence[str] = (),
    ) -> None:
        check_device(device)
        agent = build_agent(
            saved.config, saved.interface, context_length=context_length, trust=trust
        )
        load_weights(agent, saved.weights, source=saved.source, fit="its configuration")
        self.saved, self.gammas = saved, agent.gammas
        gamma = agent.gammas[-1] if gamma is None else gamma
        known = ", ".join(map(str, agent.gammas))
        is_known = gamma in agent.gammas
        require("DeployedAgent", "gamma", gamma, is_known, f"be one of {known} in {saved.source}")
        self.gamma = gamma
        evaluation = saved.config.get("evaluation")
        if greedy is None:
            greedy = isinstance(evaluation, Mapping) and evaluation.get("greedy", False)
        self.greedy = bool(greedy)
        policy = (
            agent.policy(gamma_index=agent.gammas.index(gamma))
            .to(device)
            .requires_grad_(False)
            .eval()
        )
        policy.prepare_to_act()
        self.horizon = saved.interface.horizon
        self.step = ActingStep(policy, self.horizon)
        self._device = torch.device(device)
        observations = saved.interface.observation_spec
        wanted = [
            *policy.in_keys,
            *(["action_mask"] if "action_mask" in observations.keys() else []),
        ]
        self._inputs = Inputs(saved.interface, wanted, makes_time=self.horizon is not None)
        self._sessions = Sessions(self.step, most=max_sessions)
        self._random = torch.Generator().manual_seed(seed).get_state()

    @property
    def observation_spec(self) -> Composite:
        """What `act` takes, of one stream."""
        return self._inputs.spec

    @property
    def action_spec(self) -> TensorSpec:
        """What `act` gives, of one stream."""
        return self.saved.interface.action_spec

    @property
    def context_length(self) -> int | None:
        """Timesteps that it remembers; None for all, or for a memory of one size."""
        return self.step.policy.trajectory_encoder.context_length

    @property
    def sessions(self) -> list[Hashable]:
        """The sessions that have begun."""
        return [name for name in self._sessions.rows if name is not None]

    def reset(self, sessions: Sequence[Hashable] | None = None) -> None:
        """Begins sessions, or begins them anew: they remember nothing.

        Args:
            sessions: Their names; None for the one stream of an agent that is given no sessions.

        Raises:
            ValueError: There would be more than ``max_sessions``.
        """
        self._sessions.begin(_ALONE if sessions is None else read_names(sessions))

    def forget(self, sessions: Sequence[Hashable]) -> None:
        """Ends sessions: what was kept for them is given up.

        Raises:
            ValueError: One has not begun.
        """
        self._sessions.forget(self._begun(sessions))

    @torch.no_grad()
    def act(
        self,
        observation: Any,
        *,
        reward: Any = None,
        done: Any = None,
        trial_start: Any = None,
        sessions: Sequence[Hashable] | None = None,
    ) -> Any:
        """Decides what to do now.

        Everything is checked before anything changes: after an error the same call may be made
        again, mended.

        Args:
            observation: A value of the environment's Gymnasium space, or arrays or tensors as in
                `observation_spec`, by name; or one array, if there is one entry. With ``sessions``
                each array has a first dimension of their number N. Entries of the context
                (`yamame.keys.CONTEXT`) are made by the agent, and not read.
            reward: What the last action earned. To be left out, or 0, at the first observation.
            done: Whether that ended the episode, so that this observation is the first of another
                one: everything is forgotten.
            trial_start: Whether that ended an attempt at a task which is now tried again: nothing
                is forgotten. For agents that were trained with several trials in an episode.
            sessions: Names of N sessions that `reset` has begun, in the order of the observations.

        Returns:
            The action as in `action_spec`, with sessions ``[N, ...]``; a tensor if tensors were
            given. `env_action` makes the environment's own value of it.

        Raises:
            ValueError: Something is missing, has another shape or dtype, is not finite, or is of a
                session that has not begun.
        """
        if sessions is None and None not in self._sessions.rows:
            self.reset()
        names, num = (_ALONE, None) if sessions is None else (self._begun(sessions), len(sessions))
        entries, as_tensor = self._inputs.read(observation, num)
        fresh = torch.tensor([name in self._sessions.fresh for name in names])
        is_init = fresh | read_flags(done, "done", num)
        starts = read_flags(trial_start, "trial_start", num)
        rewards = read_reward(reward, num, is_init, fresh)
        mask = entries.pop("action_mask", None)
        if mask is not None:  # it is refused before anything changes
            space = self.step.policy.action_space
            space.distribution(torch.zeros(len(names), space.num_params), mask)

        order = self._sessions.order(names)
        ordered = [value[order].to(self._device) for value in (entries, rewards, is_init, starts)]
        column = (value.unsqueeze(-1) for value in ordered[1:])
        taken, where = self._sessions.take([names[place] for place in order], self._device)
        params, states = self.step(ordered[0], *column, taken)
        action = self._choose(params.cpu(), None if mask is None else mask[order])
        states["prev_action"] = self.step.policy.action_space.encode(action).to(self._device)
        self._sessions.put(taken, states, where)
        self._sessions.fresh.difference_update(names)
        action = (
            action[0]
            if num is None
            else torch.empty_like(action).index_copy_(0, torch.tensor(order), action)
        )
        return action if as_tensor else action.numpy()[()]

    def env_action(self, action: Any) -> Any:
        """The value of the environment's Gymnasium space for an action of `act`: what ``env.step``
        takes.

        Numbers of ``Discrete(n, start=s)`` begin at ``s``, arrays have the shape and dtype of the
        space, and actions of ``Dict`` and ``Tuple`` spaces are dictionaries and tuples.

        Args:
            action: An action as in `action_spec`; of N sessions ``[N, ...]``. Real numbers outside
                the bounds by no more than rounding become the bounds.

        Returns:
            The value; of N sessions a list of N values.

        Raises:
            ValueError: The action has another shape or dtype, or is out of range.
        """
        interface = self.saved.interface
        batch, one = read_action(action, interface)
        entry = interface.spaces.action
        columns = entry.read(batch, label="DeployedAgent: action", indices=True)
        if interface.recorded is not None:
            values = entry.values(columns)
        else:
            one_hots = isinstance(self.action_spec, OneHot | MultiOneHot)
            own = batch if one_hots else columns.reshape(batch.shape)
            values = list(own.astype(str(self.action_spec.dtype).removeprefix("torch.")))
        return values[0] if one else values

    def _choose(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Actions ``[N, ...]`` of distributions ``[N, P]``."""
        space = self.step.policy.action_space
        distribution = space.distribution(params, mask)
        if self.greedy:
            return space.decode(distribution.mode)
        with torch.random.fork_rng(devices=[]):  # distributions draw from PyTorch's generator
            torch.set_rng_state(self._random)
            action = space.decode(distribution.sample())
            self._random = torch.get_rng_state()
        return action

    def _begun(self, sessions: Any) -> list[Hashable]:
        names = read_names(sessions)
        for name in names:
            known = name in self._sessions.rows
            require(
                "DeployedAgent", "sessions", name, known, "have begun, with reset(sessions=[...])"
            )
        return names

    def save_pretrained(self, folder: str | Path, *, small: bool = False) -> Path:
        """Writes a folder from which `yamame.load` makes this agent; see `yamame.deploy.folder`.

        Args:
            folder: New, empty, or written by this method.
            small: Only what acting needs, with matrices in half precision (float16): about a third
                of the size. It decides nearly as this one does.
        """
        weights = for_acting(self.saved.weights) if small else self.saved.weights
        return write_folder(replace(self.saved, weights=weights), Path(folder))

    def export(self, path: str | Path, *, num_streams: int = 1) -> Path:
        """Writes its greedy step as a graph: ``file.pt2`` by `torch.export`, ``file.onnx`` for
        ONNX.

        What goes in and comes out, the memory included, stands in `yamame.deploy.export`.

        Args:
            path: The file; its suffix says which.
            num_streams: N, of all tensors.

        Raises:
            UsageError: The suffix is another; the memory has no end, so that ``context_length``
                must be given to `yamame.load`; or the extra ``yamame[onnx]`` is not installed.
        """
        from yamame.deploy.export import GreedyStep, export_step

        entries = {
            key: (spec.shape, spec.dtype) for key, spec in self.observation_spec.items(True, True)
        }
        return export_step(GreedyStep(self.step, entries), Path(path), num_streams)
