"""Worker processes play what only this process has registered, or it is refused at once."""

import subprocess
import sys

import gymnasium
import pytest
from faulty_envs import Walk
from yamame_envs import Gym, HostedEnv, Workers

NOTEBOOK = """
import threading
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeAwareObservation, TransformReward
from yamame_envs import Gym, MultiDomain, Workers

class Here(gymnasium.Env):
    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
    def __init__(self, shown=1.0):
        self.shown = shown
    def reset(self, *, seed=None, options=None):
        return np.full(1, self.shown, np.float32), {}
    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

lock = threading.Lock()

class Locked(Here):
    def reset(self, *, seed=None, options=None):
        with lock:
            return super().reset()

class Own(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    def __init__(self, env):
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

def outer(**settings):
    return TransformReward(gymnasium.make("Here-v0", **settings), lambda reward: 5 * reward)

register = gymnasium.register
register("Here-v0", entry_point=Here, max_episode_steps=4, kwargs={"shown": 2.0})
register("Text-v0", entry_point="__main__:Here")
register("Outer-v0", entry_point=outer, max_episode_steps=4)
register("Wrapped-v0", entry_point=Here, max_episode_steps=4,
         additional_wrappers=(TimeAwareObservation.wrapper_spec(),))
register("Locked-v0", entry_point=Locked)
register("OwnWrapper-v0", entry_point=Here, additional_wrappers=(Own.wrapper_spec(),))
del gymnasium.registry["CartPole-v1"]
register("CartPole-v1", entry_point=Here)

for id in ("Here-v0", "Text-v0", "Outer-v0", "Wrapped-v0", "CartPole-v1"):
    played = []
    for num_processes in (0, 2):
        env = Gym(id=id, num_envs=2, workers=Workers(num_processes=num_processes))
        steps = env.rollout(2)
        played.append((steps["observation"].tolist(), steps["next", "reward"].tolist()))
        env.close()
    print(id, played[0] == played[1], played[0][0][0][0][0], played[0][1][0][0][0])
for id in ("Locked-v0", "OwnWrapper-v0"):
    print(Gym(id=id).rollout(2).shape[1])
    try:
        Gym(id=id, workers=Workers(num_processes=1))
    except ValueError as error:
        print(error)
domains = MultiDomain(ids=("Here-v0", "Outer-v0"), workers=Workers(num_processes=1))
print(domains.rollout(2)["observation"].flatten().tolist())
domains.close()
"""


@pytest.mark.parametrize("kind", ["notebook", "script"])
def test_what_a_notebook_or_a_script_registers_is_played_in_processes_or_refused_at_once(
    kind, tmp_path
):
    command = [sys.executable, "-"]
    if kind == "script":
        (tmp_path / "script.py").write_text(NOTEBOOK)
        command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(
        command, input=NOTEBOOK, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "Here-v0 True 2.0 1.0",
        "Text-v0 True 1.0 1.0",
        "Outer-v0 True 2.0 5.0",
        "Wrapped-v0 True 1.0 1.0",
        "CartPole-v1 True 1.0 1.0",
    ]
    for id, refusal in (("Locked-v0", lines[6]), ("OwnWrapper-v0", lines[8])):
        assert refusal.startswith(f"Gym('{id}'): id must name an environment that can be pickled")
        assert "env.id=module:id" in refusal
    assert "__main__:Own" in lines[8]
    assert lines[9] == "[2.0, 2.0]"


def test_an_environment_that_is_registered_for_batches_only_is_refused():
    gymnasium.register("only/Vector-v0", vector_entry_point="nothing:Vector")
    with pytest.raises(ValueError, match=r"^Gym: id must be registered with an entry_point, .*"):
        Gym(id="only/Vector-v0")
    del gymnasium.registry["only/Vector-v0"]


def test_a_function_without_a_name_is_made_in_processes():
    env = HostedEnv(lambda: Walk(), num_envs=2, workers=Workers(num_processes=2))
    assert env.reset()["is_init"].all()
    env.close()
