"""Relabelling equals a plain-Python version of the whole algorithm, given the same draws."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, completion_times
from yamame.replay import GoalFrequencies, Relabel, RelabelKeys
from yamame.replay.hindsight import rewrite
from yamame.testing import random_goal_trajectories


class Recording(Relabel):
    """Keeps what was drawn, so that the rest can be done again by hand."""

    def _draw(self, *args):
        self.drawn = super()._draw(*args)
        return self.drawn


# The whole algorithm again, for one trajectory, in lists.


def naive_goals_held(row, t):
    held = zip(row["achieved"][t].tolist(), row["achieved_mask"][t].tolist(), strict=True)
    return [goal for goal, valid in held if valid]


def naive_successes(row, instruction, length):
    found, active = [], 0
    for t in range(1, length):
        if active < len(instruction):
            wanted = instruction[active]
            for goal in naive_goals_held(row, t):
                if max(abs(x - y) for x, y in zip(goal, wanted, strict=True)) < 1e-3:
                    found.append((t, wanted))
                    active += 1
                    break
    return found


def naive_instruction(row):
    return [goal for goal in row["goal"][0].tolist() if any(x != GOAL_PAD for x in goal)]


def naive_merge(instruction, successes, drawn):
    known = [goal for _, goal in sorted(successes + drawn)]
    return known + instruction[len(known) :]


def naive_rewrite(row, instruction):
    """The trajectory under another instruction, as a dict of new tensors."""
    row = {key: value.clone() for key, value in row.items()}
    length, slots = int(row["mask"].sum()), row["goal"].shape[1]
    successes = naive_successes(row, instruction, length)
    complete = len(successes) == len(instruction)
    if complete:
        length = successes[-1][0] + 1
    for key, value in row.items():
        value[length:] = 0
        if key == "action" or key.startswith("next."):
            value[length - 1 :] = 0
    for key in ("prev_reward", "next.reward", "next.success"):
        row[key][:] = 0
    for t in range(length):
        done = sum(time <= t for time, _ in successes)
        unused = [GOAL_PAD] * row["goal"].shape[2]
        for k in range(slots):
            goal = instruction[k] if k < len(instruction) else unused
            row["goal"][t, k] = torch.tensor([GOAL_COMPLETED] * len(goal) if k < done else goal)
    for time, _ in successes:
        row["prev_reward"][time] = row["next.reward"][time - 1] = 1
    if complete:
        row["next.terminated"][length - 2] = row["next.success"][length - 2] = True
    row["next.done"] = row["next.terminated"] | row["next.truncated"]
    return row


def rows_of(batch):
    return [
        {".".join(k) if isinstance(k, tuple) else k: v for k, v in row.items(True, True)}
        for row in batch
    ]


def assert_rows_equal(out, expected):
    longest = max(int(row["mask"].sum()) for row in expected)
    assert out.shape[1] in (longest, expected[0]["mask"].shape[0])
    for b, row in enumerate(rows_of(out)):
        for key, value in row.items():
            assert torch.equal(value, expected[b][key][: out.shape[1]]), (b, key)


@given(
    slots=st.integers(1, 5),
    held=st.integers(1, 3),
    span=st.integers(2, 30),
    size=st.integers(1, 2),
    strategy=st.sampled_from(["some", "all", "all_or_nothing", "none"]),
    single_goal=st.booleans(),
    rarity=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=80, derandomize=True, database=None)
def test_a_relabelled_batch_equals_the_plain_version_with_the_same_draws(
    slots, held, span, size, strategy, single_goal, rarity, seed
):
    sizes = {"num_goals": slots, "num_achieved": held, "goal_size": size, "span": span}
    batch = random_goal_trajectories(30, 11, **sizes, seed=seed)
    table = GoalFrequencies()
    table.update(batch["achieved"], batch["achieved_mask"], batch["mask"])
    relabel = Recording(strategy, single_goal=single_goal, rarity=table if rarity else None)
    torch.manual_seed(seed)
    out = relabel(batch)

    nothing = torch.full((30, slots), 11), torch.zeros(30, slots, size)
    times, goals = getattr(relabel, "drawn", nothing)
    expected = []
    for b, row in enumerate(rows_of(batch)):
        original, length = naive_instruction(row), int(row["mask"].sum())
        instruction = original[:1] if single_goal else original
        successes = naive_successes(row, instruction, length)
        taken = {t for t, _ in successes}
        free = [t for t in range(1, length) if t not in taken and naive_goals_held(row, t)]
        drawn = [
            (t, g) for t, g in zip(times[b].tolist(), goals[b].tolist(), strict=True) if t < 11
        ]
        assert len({t for t, _ in drawn}) == len(drawn)
        assert {t for t, _ in drawn} <= set(free)
        assert all(goal in naive_goals_held(row, t) for t, goal in drawn)
        most = min(len(instruction) - len(successes), len(free))
        allowed = {"some": range(most + 1), "all": [most], "all_or_nothing": [0, most], "none": [0]}
        assert len(drawn) in allowed[strategy]
        merged = naive_merge(instruction, successes, drawn)
        expected.append(naive_rewrite(row, merged) if merged != original else row)
    assert_rows_equal(out, expected)


def test_nothing_leaves_the_last_step_of_a_trajectory_that_alone_decides_the_length():
    batch = random_goal_trajectories(400, seed=21)
    times = completion_times(
        batch["goal"][:, 0], batch["achieved"], batch["achieved_mask"], batch["mask"].squeeze(-1)
    )
    checked = 0
    for b in range(400):
        one = batch[b : b + 1]
        goal, t = one["goal"][:, 0].clone(), int(times[b, 0])
        if t + 1 < int(one["mask"].sum()):
            goal[:, 1:] = GOAL_PAD
            out = rewrite(one, goal, torch.tensor([True]), RelabelKeys())
            assert out.shape == (1, t + 1)
            assert_rows_equal(
                out, [naive_rewrite(rows_of(one)[0], naive_instruction({"goal": goal}))]
            )
            checked += bool((one["action"][0, t] != 0).any())
    assert checked > 10


def test_entries_in_lower_precision_are_rewritten_like_others():
    batch = random_goal_trajectories(100, seed=22)
    reduced = batch.apply(lambda value: value.bfloat16() if value.dtype == torch.float32 else value)
    outs = []
    for one in (batch, reduced):
        torch.manual_seed(0)
        outs.append(Relabel("some")(one))
    assert not torch.equal(outs[0]["goal"], batch["goal"][:, : outs[0].shape[1]])
    for key, value in outs[0].items(
        True, True
    ):  # rewards and goals are small whole numbers, held exactly
        assert torch.equal(outs[1][key], value.to(outs[1][key].dtype)), key
