"""What makes two runs the same: by the key of a setting, and for what it is asked."""

import pytest
from yamame.checks import UsageError
from yamame.files.identity import (
    compare_config,
    computed,
    differing,
    is_a_setting,
    is_of_one_run,
    key_of,
    leaves_what_was_done,
    makes_another_experiment,
    makes_another_name,
    may_change_on_resume,
)

CONFIG = {
    "seed": 1,
    "budget": {"minutes": 5},
    "agent": {"gammas": [0.9], "parts": [{"a": 1}], "none": {}},
}
QUESTIONS = (
    may_change_on_resume,
    makes_another_name,
    is_a_setting,
    makes_another_experiment,
    is_of_one_run,
)


@pytest.mark.parametrize(
    ("keys", "answers"),
    [
        ("resume run.name run.root run.overwrite", (True, False, False, False, True)),
        (
            "logger logger.experiment checkpoint.keep replay.keep expected hydra.verbose",
            (True, False, False, False, False),
        ),
        ("budget budget.minutes", (True, False, True, True, False)),
        ("seed", (False, False, False, False, True)),
        ("evaluation.interval evaluation.seed", (True, False, True, True, False)),
        ("evaluation.video_frames evaluation.num_envs", (True, False, False, False, False)),
        ("workers.num_processes", (True, True, False, False, False)),
        (
            "device schedule.autocast collector.autocast schedule.cuda_graph packing.row_multiple",
            (True, True, True, False, False),
        ),
        ("experiment", (False, True, True, False, False)),
        (
            "encoder encoder.d_model env.size schedule.batch_size runs budgets",
            (False, True, True, True, False),
        ),
    ],
)
def test_every_kind_of_setting_has_its_answers(keys, answers):
    for key in keys.split():
        assert (key, *(question(key) for question in QUESTIONS)) == (key, *answers)


def test_the_key_of_an_argument_is_what_it_sets_adds_or_takes_away():
    texts = (
        "run.name=a=b",
        "+ablation=x",
        "++env.size=3",
        "~trials",
        "encoder@agent.encoder=gru",
        "-m",
    )
    assert [key_of(text) for text in texts] == [
        "run.name",
        "ablation",
        "env.size",
        "trials",
        "encoder",
        "-m",
    ]


def test_every_differing_key_is_named_with_both_values():
    current = {
        "seed": 2,
        "budget": {"minutes": 5},
        "agent": {"gammas": [0.9], "parts": [{"a": 1}], "new": "x"},
    }
    with pytest.raises(UsageError) as raised:
        compare_config(CONFIG, current)
    message = str(raised.value)
    for part in ("seed: 1 -> 2", "agent.none: {} -> '(absent)'", "agent.new: '(absent)' -> 'x'"):
        assert part in message
    assert "gammas" not in message


@pytest.mark.parametrize(
    ("before", "after", "remedy"),
    [
        ({"processes": 2}, {}, "; start it as 2 processes of torchrun or srun, or another"),
        ({}, {"processes": 2}, "; start it without torchrun, or another run.name"),
        ({"seed": 1}, {"seed": 2, "processes": 2}, "seed=1, start it without torchrun, or another"),
    ],
)
def test_the_number_of_processes_is_no_setting_to_give(before, after, remedy):
    with pytest.raises(UsageError) as raised:
        compare_config(before, after)
    assert remedy in str(raised.value)
    assert "processes=" not in str(raised.value)


def test_what_was_done_stays_done_whoever_does_it_and_is_evaluated_again_by_other_tasks():
    others = {
        "workers": {"num_processes": 2},
        "evaluation": {"num_envs": 3, "seed": 7},
        "budget": {"minutes": 9},
    }
    assert differing(CONFIG, CONFIG | others, but_for=may_change_on_resume) == []
    changed = differing(CONFIG, CONFIG | others, but_for=leaves_what_was_done)
    assert changed == ["evaluation.seed: '(absent)' -> 7"]
    assert may_change_on_resume("env.parts.0.workers.timeout")
    assert not may_change_on_resume("env.parts.0.size")


def test_what_a_run_is_kept_by_may_change_but_no_other_key_that_begins_alike():
    machine = {"device": "cuda:1", "schedule": {"autocast": "bfloat16"}, "packing": None}
    compare_config(CONFIG, CONFIG | machine)
    with pytest.raises(UsageError, match=r"schedule\.batch_size"):
        compare_config(
            CONFIG, CONFIG | machine | {"schedule": {"autocast": "bfloat16", "batch_size": 3}}
        )
    compare_config(CONFIG, {**CONFIG, "budget": {"minutes": 9}, "logger": {"a": 1}, "resume": True})
    with pytest.raises(UsageError, match="budgets"):
        compare_config(CONFIG, {**CONFIG, "budgets": 1})
    with pytest.raises(UsageError, match=r"agent\.gammas: \[0.9\] -> \[0.8\]"):
        compare_config(CONFIG, {**CONFIG, "agent": {**CONFIG["agent"], "gammas": [0.8]}})


def test_a_run_from_before_tasks_were_held_out_is_not_resumed_on_other_tasks():
    before, after = {"env": {"size": 9}}, {"env": {"size": 9, "split": "train"}}
    with pytest.raises(UsageError, match=r"env\.split: 'all' -> 'train'"):
        compare_config(before, after)
    compare_config(before, {"env": {"size": 9, "split": "all"}})
    compare_config(
        {"env": {"split": "train"}}, {"env": {"split": "train"}}
    )  # that of another environment


@pytest.mark.parametrize(
    ("env", "was"),
    [
        ({"_target_": "yamame_envs.MazeRunner"}, "walls_and_goals"),
        ({"_target_": "yamame_envs.PackageDelivery"}, "roads_and_goals"),
        ({"_target_": "yamame_envs.DarkKeyDoor"}, "rooms_and_starts"),
        ({"_target_": "yamame_envs.MetaFrozenLake", "hard": True}, "lakes_and_actions"),
        ({"_target_": "yamame_envs.MetaFrozenLake", "hard": False}, "lakes"),
    ],
)
def test_a_run_from_before_what_is_held_out_could_be_chosen_keeps_its_tasks(env, was):
    compare_config({"env": env}, {"env": {**env, "split_by": was}})
    with pytest.raises(UsageError, match=rf"env\.split_by: '{was}' -> 'another'"):
        compare_config({"env": env}, {"env": {**env, "split_by": "another"}})
    compare_config({"env": env}, {"env": {**env, "position": True}})
    with pytest.raises(UsageError, match=r"env\.position: True -> False"):
        compare_config({"env": env}, {"env": {**env, "position": False}})


@pytest.mark.parametrize("key", ["packing", "collector.autotune"])
def test_a_part_that_is_left_out_is_one_change_whatever_settings_it_had(key):
    part = {"_target_": "yamame.replay.SequencePacking", "row_multiple": 1, "inner": {"depth": 2}}
    name, _, inner = key.partition(".")
    have, lack = ({name: {inner: value} if inner else value} for value in (part, None))
    assert len(differing(have, lack, but_for=lambda key: False)) == 1
    assert len(differing(lack, have, but_for=lambda key: False)) == 1
    assert "SequencePacking" in differing(have, lack, but_for=lambda key: False)[0]
    # Two settings of a part that both have are two changes.
    other = {
        name: {inner: {**part, "row_multiple": 2, "inner": {"depth": 3}}}
        if inner
        else {**part, "row_multiple": 2, "inner": {"depth": 3}}
    }
    assert len(differing(have, other, but_for=lambda key: False)) == 2


def test_a_refused_resume_names_the_former_values_to_add():
    """The default of a setting may have changed since the run began, so that nobody has typed what
    differs.
    """
    saved = {"env": {"_target_": "yamame_envs.MazeRunner", "size": 9, "split": "train"}}
    current = {"env": {**saved["env"], "split_by": "walls", "position": True}}
    with pytest.raises(UsageError, match=r"env\.split_by=walls_and_goals, or another run\.name"):
        compare_config(saved, current)


def test_a_part_that_earlier_versions_lacked_is_a_change_unless_it_is_none():
    saved = {"schedule": {"batch_size": 4}, "replay": {"capacity": 9}}
    node = {"_target_": "yamame.training.OverfittingRegulator", "target": 1.2}
    present = {"schedule": {"batch_size": 4, "regulator": None}, "replay": {"capacity": 9}}
    assert differing(saved, present, but_for=may_change_on_resume) == []
    present["replay"]["held_out"] = 16
    assert differing(saved, present, but_for=may_change_on_resume) == []
    present["schedule"]["regulator"] = node
    changes = differing(saved, present, but_for=may_change_on_resume)
    assert changes == ["schedule.regulator: null -> OverfittingRegulator"]
    with pytest.raises(UsageError, match=r"schedule\.regulator=null"):
        compare_config(saved, present)

    assert differing(present, present, but_for=may_change_on_resume) == []
    present["schedule"]["regulator"] = node | {"target": 1.3}
    other = {**present, "schedule": {"batch_size": 4, "regulator": node}}
    changes = differing(other, present, but_for=may_change_on_resume)
    assert changes == ["schedule.regulator.target: 1.2 -> 1.3"]
    none = {**present, "schedule": {"batch_size": 4, "regulator": None}}
    with pytest.raises(UsageError, match=r"OverfittingRegulator -> null") as raised:
        compare_config(other, none)
    assert "schedule.regulator=null" not in str(raised.value)


def test_a_computed_setting_is_resumed_as_it_was_composed_or_as_its_value():
    saved = computed(CONFIG, "agent.gammas", [0.5, 0.9])
    given = {**CONFIG, "agent": {**CONFIG["agent"], "gammas": [0.5, 0.9]}}
    compare_config(saved, CONFIG)
    compare_config(saved, given)
    with pytest.raises(UsageError, match=r"agent\.gammas: \[0\.5, 0\.9\] -> \[0\.9\]"):
        compare_config(given, CONFIG)
    other = {**CONFIG, "agent": {**CONFIG["agent"], "gammas": "other"}}
    with pytest.raises(UsageError, match=r"agent\.gammas: \[0\.5, 0\.9\] -> 'other'") as raised:
        compare_config(saved, other)
    assert "'agent.gammas=[0.5,0.9]'" in str(raised.value)


def test_former_values_to_give_include_those_of_precision():
    saved = {"env": {"size": 9}, "schedule": {"autocast": None}, "device": "cuda"}
    current = {"env": {"size": 7}, "schedule": {"autocast": "auto"}, "device": "cpu"}
    with pytest.raises(UsageError, match=r"values, env\.size=9 schedule\.autocast=null, or"):
        compare_config(saved, current)
    compare_config(saved, {**current, "env": {"size": 9}})
