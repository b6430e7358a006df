"""Trained agents that act outside of training, for one stream of observations or for many sessions.

Decisions are those of an evaluation (`yamame.evaluation.evaluate`). The agent itself keeps its
memory, the previous action and reward, and the time.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite, MultiOneHot, OneHot, TensorSpec

from yamame.checks import PositiveInt, check_bounds, require
from yamame.deploy.build import build_agent, check_device, for_acting, load_weights
from yamame.deploy.export import GreedyStep, export_step
from yamame.deploy.folder import write_folder
from yamame.deploy.inputs import Inputs, read_action, read_flags, read_names, read_reward
from yamame.deploy.interface import dtype_name
from yamame.deploy.saved import SavedAgent
from yamame.deploy.sessions import Sessions
from yamame.deploy.step import ActingStep
from yamame.files.trust_record import recorded
from yamame.files.trusted import prefixes_of

_ALONE = None
"""Name of the session of an agent that acts without sessions."""


class DeployedAgent:
    """Trained agent that keeps its own history; `yamame.load` creates it.

    A loop over one stream::

        agent.reset()  # before the first observation of every episode, or pass done=True
        action = agent.act(observation)
        while True:
            # Where done is set, the observation is the first one of the next episode.
            observation, reward, done = ...
            action = agent.act(observation, reward=reward, done=done)

    Args:
        saved: Content of the agent's file.
        gamma: Discount factor whose policy acts, one of the trained ones; None for the last.
        greedy: Take the most probable action instead of sampling; None for the choice of the
            evaluations in training.
        seed: Seed of the samples.
        context_length: Timesteps of memory, if the encoder has this setting; None for the number in
            training.
        max_sessions: Largest number of sessions; None for no limit.
        device: Device of the computation.
        trust: Packages whose classes the file may name besides Yamame's, as ``["mylab."]``. Runs of
            this user need none (`yamame.files.trust_record`).

    Attributes:
        saved: Content of the agent's file.
        step: One decision as a function of tensors.
        greedy: Whether the most probable action is taken.
        gammas: Discount factors with a policy.
        gamma: Discount factor whose policy acts.
        horizon: Length of an episode in timesteps, if the agent observes the time.
        observation_spec: Observations for `act`, of one stream.
        action_spec: Actions from `act`, of one stream.

    Raises:
        UsageError: The file does not describe an agent, or names a class without trust; an option
            does not fit the agent.
    """

    @check_bounds
    def __init__(
        self,
        saved: SavedAgent,
        *,
        gamma: float | None = None,
        greedy: bool | None = None,
        seed: int = 0,
        context_length: int | None = None,
        max_sessions: PositiveInt | None = None,
        device: str | torch.device = "cpu",
        trust: Sequence[str] = (),
    ) -> None:
        check_device(device)
        interface = saved.interface
        trust = [*prefixes_of(trust), *recorded(saved.source, saved.config).packages]
        agent = build_agent(saved.config, interface, context_length=context_length, trust=trust)
        load_weights(agent, saved.weights, source=saved.source, fit="its configuration")
        self.saved = saved
        self.gammas = agent.gammas
        self.gamma = agent.gammas[-1] if gamma is None else gamma
        known = ", ".join(map(str, agent.gammas))
        condition = f"be one of {known} in {saved.source}"
        require("DeployedAgent", "gamma", gamma, self.gamma in agent.gammas, condition)

        if greedy is None:
            evaluation = saved.config.get("evaluation")
            greedy = isinstance(evaluation, Mapping) and evaluation.get("greedy", False)
        self.greedy = bool(greedy)
        # A discount factor may be listed twice; the last policy acts by default.
        index = -1 if gamma is None else agent.gammas.index(self.gamma)
        policy = agent.policy(gamma_index=index)
        policy.to(device).requires_grad_(False).eval()
        policy.prepare_to_act()
        self.horizon = interface.horizon
        self.step = ActingStep(policy, self.horizon)

        self._device = torch.device(device)
        wanted = list(policy.in_keys)
        if "action_mask" in interface.observation_spec.keys():
            # The mask is applied to the distribution; it is not an input of the policy.
            wanted.append("action_mask")
        self._inputs = Inputs(interface, wanted, makes_time=self.horizon is not None)
        self._sessions = Sessions(self.step, most=max_sessions)
        self._random_state = torch.Generator().manual_seed(seed).get_state()

    @property
    def observation_spec(self) -> Composite:
        """Observations for `act`, of one stream."""
        return self._inputs.spec

    @property
    def action_spec(self) -> TensorSpec:
        """Actions from `act`, of one stream."""
        return self.saved.interface.action_spec

    @property
    def context_length(self) -> int | None:
        """Timesteps of memory; None if unlimited, or if the memory has a fixed size."""
        return self.step.policy.trajectory_encoder.context_length

    @property
    def sessions(self) -> list[Hashable]:
        """Sessions that have begun."""
        return [name for name in self._sessions.rows if name is not _ALONE]

    def reset(self, sessions: Sequence[Hashable] | None = None) -> None:
        """Begin sessions with empty memories; those that have begun lose theirs.

        Args:
            sessions: Names of the sessions; None for an agent that acts without sessions.

        Raises:
            ValueError: There would be more than ``max_sessions``.
        """
        self._sessions.begin([_ALONE] if sessions is None else read_names(sessions))

    def forget(self, sessions: Sequence[Hashable]) -> None:
        """End sessions and release their memories.

        Raises:
            ValueError: A session has not begun.
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
        """Choose an action.

        All arguments are checked before anything changes, so after an error the call can be
        repeated with corrected arguments.

        Args:
            observation: A value of the environment's Gymnasium space, as its ``reset`` and ``step``
                return it, or arrays or tensors by name as in `observation_spec`; a single array, if
                there is only one entry. It is read as a value of the space if it has one for every
                entry in the places of the space. With ``sessions`` each array has their number N as
                first dimension, or a list holds N observations. Entries of the context
                (`yamame.keys.CONTEXT`) are computed by the agent, and ignored here.
            reward: Reward of the last action. 0 or None at the first observation after `reset`.
            done: Whether the last action ended the episode, so that this observation is the first
                one of the next. The memory is cleared, so `reset` need not be called.
            trial_start: Whether the last action ended an attempt at a task that is now tried again.
                The memory is kept. For agents trained with several trials per episode.
            sessions: Names of N sessions that `reset` has begun, in the order of the observations.

        Returns:
            The action as in `action_spec`, ``[N, ...]`` with sessions; a tensor if tensors were
            passed. `env_action` converts it to a value of the environment's own space.

        Raises:
            ValueError: An argument is missing, has a wrong shape or dtype, or is not finite; a
                session has not begun.
        """
        if sessions is None and _ALONE not in self._sessions.rows:
            self.reset()
        names: list[Hashable] = [_ALONE] if sessions is None else self._begun(sessions)
        batch = () if sessions is None else (len(names),)
        observations, has_tensors = self._inputs.read(observation, batch)
        is_fresh = torch.tensor([name in self._sessions.fresh for name in names])
        is_init = is_fresh | read_flags(done, "done", batch)
        starts = read_flags(trial_start, "trial_start", batch)
        rewards = read_reward(reward, batch, is_init, is_fresh)
        mask = observations.pop("action_mask", None)
        if mask is not None:
            # The distribution refuses a mask without any allowed action, before anything changes.
            space = self.step.policy.action_space
            space.distribution(torch.zeros(len(names), space.num_params), mask)

        actions = self._decide(names, observations, (rewards, is_init, starts), mask)
        action = actions if batch else actions[0]
        # The empty index makes a NumPy scalar of an array without dimensions.
        return action if has_tensors else action.numpy()[()]

    def _decide(
        self,
        names: list[Hashable],
        observations: TensorDictBase,
        columns: tuple[Tensor, ...],
        mask: Tensor | None,
    ) -> Tensor:
        """Choose actions and advance the states of sessions.

        Args:
            names: N sessions.
            observations: ``[N]``.
            columns: Reward, ``is_init`` and ``trial_start``, ``[N]`` each.
            mask: Allowed actions, ``[N, ...]`` bool; None if all are.

        Returns:
            Actions ``[N, ...]`` on the CPU.
        """
        # In the order of their rows, all sessions together are read and written in place.
        positions = self._sessions.order(names)
        sorted_names = [names[position] for position in positions]
        taken, where = self._sessions.take(sorted_names, self._device)

        order = torch.tensor(positions)
        observation = observations[order].to(self._device)
        flags = [column[order].unsqueeze(-1).to(self._device) for column in columns]
        params, states = self.step(observation, *flags, taken)
        action = self._choose(params.cpu(), None if mask is None else mask[order])
        states["prev_action"] = self.step.policy.action_space.encode(action).to(self._device)
        self._sessions.put(taken, states, where)
        self._sessions.fresh.difference_update(names)
        # Back in the order of the caller.
        return torch.empty_like(action).index_copy_(0, order, action)

    def _choose(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return actions ``[N, ...]`` from parameters ``[N, P]`` of distributions."""
        space = self.step.policy.action_space
        distribution = space.distribution(params, mask)
        if self.greedy:
            return space.decode(distribution.mode)
        # Distributions can only draw from PyTorch's global generator, which is the caller's.
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random_state)
            action = space.decode(distribution.sample())
            self._random_state = torch.get_rng_state()
        return action

    def _begun(self, sessions: Any) -> list[Hashable]:
        """Return the names of sessions, after checking that all have begun."""
        names = read_names(sessions)
        for name in names:
            has_begun = name in self._sessions.rows
            remedy = "start them with reset(sessions=[...])"
            require("DeployedAgent", "sessions", name, has_begun, "have started", remedy=remedy)
        return names

    def read_observation(self, observation: Any, *, num: int | None = None) -> TensorDictBase:
        """Convert an observation to the entries that are stored for training.

        Exported graphs and MLflow models take these, by the names in `TensorDict.flatten_keys`.
        `act` takes them, too.

        Args:
            observation: An observation, or those of several streams, as for `act`.
            num: Number N of streams; None for one observation.

        Returns:
            Entries ``[N]`` as in `observation_spec`, ``[1]`` for one observation.

        Raises:
            ValueError: An entry is missing, unknown, or not in its space.
        """
        batch = () if num is None else (num,)
        entries, _ = self._inputs.read(observation, batch)
        return entries

    def env_action(self, action: Any) -> Any:
        """Convert an action of `act` to a value of the environment's Gymnasium space.

        Numbers of ``Discrete(n, start=s)`` begin at ``s``, arrays have the shape and dtype of the
        space, and actions of ``Dict`` and ``Tuple`` spaces are dictionaries and tuples.

        Args:
            action: An action as in `action_spec`, ``[N, ...]`` for N sessions. Real numbers that
                are out of bounds by a rounding error are moved to the bounds.

        Returns:
            The value for ``env.step``; for N sessions a list of N values.

        Raises:
            ValueError: The action has a wrong shape or dtype, or is out of range.
        """
        interface = self.saved.interface
        batch, is_single = read_action(action, interface)
        entry = interface.spaces.action
        columns = entry.read(batch, label="DeployedAgent: action", indices=True)
        if interface.recorded is not None:
            values = entry.values(columns)
        else:
            # Files of earlier versions do not describe the space, so the spec's format is kept.
            is_one_hot = isinstance(self.action_spec, OneHot | MultiOneHot)
            stored = batch if is_one_hot else columns.reshape(batch.shape)
            values = list(stored.astype(dtype_name(self.action_spec)))
        return values[0] if is_single else values

    def save_pretrained(self, folder: str | Path, *, small: bool = False) -> Path:
        """Write a folder that `yamame.load` reads, see `yamame.deploy.folder`.

        Args:
            folder: A new or empty folder, or one that this method has written.
            small: Leave out weights that acting does not need, and store matrices in half precision
                (float16): about a third of the size. Rounding may change rare decisions.
        """
        weights = for_acting(self.saved.weights) if small else self.saved.weights
        return write_folder(replace(self.saved, weights=weights), Path(folder))

    @check_bounds
    def export(self, path: str | Path, *, num_streams: PositiveInt = 1) -> Path:
        """Write the greedy step as a graph for `torch.export` or ONNX.

        `yamame.deploy.export` lists the inputs and outputs, memory included.

        Args:
            path: File with the suffix ``.pt2`` (`torch.export`) or ``.onnx``.
            num_streams: Number N of streams, the first dimension of all tensors.

        Raises:
            UsageError: The suffix is another; the memory has no largest size, so that
                ``context_length`` must be given to `yamame.load`; or the extra ``yamame[onnx]`` is
                not installed.
        """
        entries = {}
        for key, spec in self.observation_spec.items(True, True):
            entries[key] = (spec.shape, spec.dtype)
        return export_step(GreedyStep(self.step, entries), Path(path), num_streams)
