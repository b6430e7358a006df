"""Wrong results of hooks of batched environments are named by their hook."""

import pytest
import torch
from torchrl.data import Bounded, Categorical
from yamame.system.messages import OutsideError
from yamame_envs import BatchedEnv


class Safe(BatchedEnv):
    """Safe with a hidden code, one of whose hooks returns something else."""

    def __init__(self, **results):
        self.results = results
        shape = Bounded(-1.0, 1.0, shape=(1,), dtype=torch.float32)
        super().__init__(
            num_envs=3,
            time_limit=4,
            action=Categorical(4),
            observations={"observation": shape},
            seed=0,
            device="cpu",
        )

    def draw_tasks(self, task_seed):
        return self.results.get("draw_tasks", {"code": task_seed % 4})

    def begin(self, task):
        return self.results.get("begin", {"hint": torch.zeros(3)})

    def transition(self, task, state, action):
        success = torch.zeros(3, 1, dtype=torch.bool)
        return self.results.get("transition", ({"hint": torch.ones(3)}, torch.zeros(3, 1), success))

    def observe(self, task, state):
        return self.results.get("observe", {"observation": state["hint"].unsqueeze(-1)})


def play(env):
    return env.rollout(5, break_when_any_done=False)


def test_right_results_are_taken():
    assert play(Safe())["next", "observation"].shape == (3, 5, 1)


FLAG = torch.zeros(3, 1, dtype=torch.bool)
WRONG = [
    ("draw_tasks", None, "be a dictionary of tensors, got NoneType"),
    ("draw_tasks", {"code": torch.zeros(())}, "rows, also at 'code', got []"),
    ("begin", {"hint": 0}, "hold tensors, also at 'hint', got int"),
    ("begin", {"hint": torch.zeros(())}, "hold 3 rows, also at 'hint', got []"),
    ("transition", None, "be (state, reward, success), got NoneType"),
    ("transition", ({}, FLAG), "be (state, reward, success), got tuple of 2"),
    ("transition", ({}, FLAG, FLAG), "hold a reward torch.float32 [3, 1], got torch.bool [3, 1]"),
    ("transition", ({}, [0.0], FLAG), "hold a reward torch.float32 [3, 1], got list"),
    (
        "transition",
        ({}, torch.zeros(3), FLAG),
        "hold a reward torch.float32 [3, 1], got torch.float32",
    ),
    ("observe", {}, "hold 'observation', got"),
    ("observe", {"observation": torch.zeros(3)}, "hold torch.float32 [3, 1] at 'observation'"),
]


@pytest.mark.parametrize(("hook", "result", "message"), WRONG)
def test_a_wrong_result_is_named_with_what_it_must_be(hook, result, message):
    with pytest.raises(OutsideError) as raised:
        play(Safe(**{hook: result}))
    assert str(raised.value).startswith(f"Safe: the result of {hook}() must ")
    assert message in str(raised.value)
