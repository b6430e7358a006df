"""State of an environment with all of its transforms."""

from collections.abc import Mapping
from typing import Any

from torchrl.envs import EnvBase, TransformedEnv


def env_state(env: EnvBase) -> dict[str, Any] | None:
    """Return the state of an environment, None if it has no state to save."""
    if isinstance(env, TransformedEnv):
        # The state of a TransformedEnv itself holds that of its transforms alone.
        base_state = env_state(env.base_env)
        if base_state is None:
            return None
        return {"base_env": base_state, "transforms": env.state_dict()}
    state = env.state_dict()
    return state if _has_leaves(state) else None


def load_env_state(env: EnvBase, state: Mapping[str, Any]) -> None:
    """Restore the result of `env_state`."""
    if isinstance(env, TransformedEnv):
        load_env_state(env.base_env, state["base_env"])
        env.load_state_dict(state["transforms"])
    else:
        env.load_state_dict(state)


def _has_leaves(state: Mapping[str, Any]) -> bool:
    for value in state.values():
        if not isinstance(value, Mapping) or _has_leaves(value):
            return True
    return False
