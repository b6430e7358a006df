"""Which runs belong together, which count, and what tells groups apart."""

import shlex
import sys
from pathlib import Path

import pytest
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.report import Group, make_sections
from yamame.report.settings import differences


def labels(section):
    return [group.label for group in section.groups]


def test_runs_that_differ_only_in_their_seed_form_a_group_in_the_order_of_seeds(make_run):
    runs = [make_run(seed, run__name=f"n{seed}", logger__flush_s=seed) for seed in (10, 2, 0)]
    (section,), left_out = make_sections(runs)
    assert [[run.seed for run in group.runs] for group in section.groups] == [["0", "2", "10"]]
    assert left_out == []
    (section,), _ = make_sections([*runs, make_run(1, lr=0.1)])
    assert [len(group.runs) for group in section.groups] == [3, 1]


def test_groups_of_another_environment_form_another_section(make_run):
    sections, _ = make_sections([make_run(), make_run(env__size=11), make_run(lr=1)])
    assert [(section.title, section.details, len(section.groups)) for section in sections] == [
        ("Maze", "size=9", 2),
        ("Maze", "size=11", 1),
    ]


def test_a_section_says_what_is_new_in_its_evaluations_where_its_runs_do(make_run):
    runs = [
        make_run(0, tags={"evaluated_on": "new mazes"}),
        make_run(1, tags={"evaluated_on": "new mazes"}),
    ]
    (section,), _ = make_sections(runs)
    assert section.evaluated_on == "new mazes"
    (section,), _ = make_sections(
        [*runs, make_run(2, tags={"evaluated_on": "new roads"}), make_run(3)]
    )
    assert section.evaluated_on == "new mazes; new roads"
    (section,), _ = make_sections([make_run(0)])
    assert section.evaluated_on is None


def test_the_experiment_of_the_command_names_a_section(make_run):
    tags = {"command": "python recipes/train.py experiment=dark seed=0"}
    sections, _ = make_sections([make_run(tags=tags), make_run(1), make_run(lr=2)])
    assert [section.title for section in sections] == ["dark (Maze)", "Maze"]
    assert [len(section.base.runs) for section in sections] == [2, 1]


def test_of_two_runs_of_one_group_and_seed_the_later_counts_and_the_other_is_named(make_run):
    first, second = make_run(3), make_run(3)
    (section,), ((left, reason),) = make_sections([first, second])
    assert section.base.runs == (second,)
    assert left is first
    assert second.run_id in reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"status": "FAILED"}, "it ended as FAILED"),
        ({"status": "KILLED"}, "it ended as KILLED"),
        ({"status": "RUNNING"}, "it has not ended"),
        ({"metrics": {"train/loss": {1: 1.0}}}, "it was never evaluated"),
    ],
)
def test_a_run_that_cannot_be_counted_is_left_out_with_the_reason(make_run, options, reason):
    good, bad = make_run(0), make_run(1, **options)
    (section,), left_out = make_sections([good, bad])
    assert section.base.runs == (good,)
    assert left_out == [(bad, reason)]


def test_a_failed_run_does_not_replace_an_earlier_good_one(make_run):
    good = make_run(0)
    (section,), _ = make_sections([good, make_run(0, status="FAILED")])
    assert section.base.runs == (good,)


def test_a_part_of_another_class_is_one_difference_and_a_changed_value_one_each():
    before = {
        "encoder._target_": "a.GRU",
        "encoder.width": "8",
        "lr": "1",
        "relabel.strategy": "some",
    }
    after = {
        "encoder._target_": "b.Transformer",
        "encoder.heads": "4",
        "lr": "2",
        "relabel.strategy": "some",
    }
    assert differences(before, after) == [("encoder", "GRU", "Transformer"), ("lr", "1", "2")]
    assert differences({"trials": "None"}, {"trials._target_": "a.Repeated", "trials.k": "3"}) == [
        ("trials", "None", "Repeated")
    ]
    assert differences({"a": "1"}, {}) == [("a", "1", "(absent)")]
    assert differences(before, dict(before)) == []


def test_what_sets_groups_apart_is_written_as_on_the_command_line(make_run):
    def run(arguments, target, **params):
        tags = {"command": f"python recipes/train.py {arguments}"}
        return make_run(tags=tags, encoder___target_=f"yamame.trajectory.{target}", **params)

    alone = run("", "TransformerEncoder")
    (section,), _ = make_sections([alone])
    assert labels(section) == ["encoder=transformer"]
    chosen = run("encoder=gru_selective", "GRUEncoder", encoder__reset="True")
    own = make_run(encoder___target_="mylab.Encoder", encoder__memory="[1, 2]", lr="None")
    own_lr = make_run(encoder___target_="mylab.Encoder", encoder__memory="[1, 2]", lr=3)
    (section,), _ = make_sections([alone, chosen])
    assert labels(section) == ["encoder=transformer", "encoder=gru_selective"]
    (section,), _ = make_sections([alone, own])
    assert labels(section) == ["base", "encoder._target_=mylab.Encoder lr=null"]
    (section,), _ = make_sections([own, own_lr, make_run(encoder___target_="mylab.Encoder", lr=3)])
    assert labels(section) == ["base", "lr=null", "~encoder.memory"]
    sections = make_sections(
        [
            run("agent/returns=bins", "GRUEncoder", agent__returns___target_="a.Bins"),
            run("", "GRUEncoder", agent__returns___target_="a.PopArt"),
        ]
    )[0]
    assert labels(sections[0]) == ["agent.returns._target_=a.PopArt", "agent/returns=bins"]


def test_the_base_is_the_group_from_which_all_others_differ_least(make_run):
    star = [make_run(lr=2), make_run(lr=1), make_run(lr=1, tau=5), make_run(lr=1, width=7)]
    (section,), _ = make_sections(star)
    assert section.base.settings["lr"] == "1"
    assert "tau" not in section.base.settings
    assert labels(section) == ["base", "lr=2", "tau=5", "width=7"]
    assert [group.letter for group in section.groups] == list("ABCD")


def test_a_command_with_fewer_overrides_makes_the_base_and_a_pattern_overrules_it(make_run):
    def run(name, arguments, **params):
        return make_run(
            name=name, tags={"command": f"python recipes/train.py {arguments}"}, **params
        )

    runs = [run("more", "relabel=none seed=0", lr=2), run("less", "seed=0 run.name=less", lr=1)]
    (section,), _ = make_sections(runs)
    assert section.base.runs[0].name == "less"
    assert labels(section) == ["lr=1", "lr=2"]
    (section,), _ = make_sections(runs, base="mor*")
    assert section.base.runs[0].name == "more"
    with pytest.raises(
        UsageError, match="base: must match the name of a run that counts, got 'nobody'"
    ):
        make_sections(runs, base="nobody")


def test_the_command_of_a_group_names_all_its_seeds_and_nothing_of_a_single_run(make_run):
    command = (
        "python recipes/train.py -m 'env.name=a b' seed=7 run.name=mine "
        "run.overwrite=true resume=true lr=1"
    )
    first, second = (make_run(seed, tags={"command": command}) for seed in (7, 8))
    assert Group("A", "", (first, second)).command == "yamame train -m 'env.name=a b' lr=1 seed=7,8"
    assert Group("A", "", (first,)).command == "yamame train 'env.name=a b' lr=1 seed=7"
    assert Group("A", "", (make_run(),)).command is None
    assert Group("A", "", (make_run(tags={"command": "it's"}),)).command is None


def test_the_command_that_repeats_a_group_is_one_that_recipes_take(make_run, monkeypatch, tmp_path):
    def given_by(words):
        """What the recipe that a command line names is given, once per run, without running it."""
        given = []

        def recipe(cfg):
            given.append((cfg.seed, cfg.env.size, cfg.expected.source))

        # A recipe is the script of a checkout, or the command of the package.
        monkeypatch.setattr(sys, "argv", words[1:])
        main(recipe, config_name=Path(words[1]).stem)
        return given

    monkeypatch.chdir(tmp_path)
    words = ["python", "recipes/train.py", "debug=tiny", "logger=none", "env.size=7"]
    words.append("expected={metric:success_mean,interval:[0.5,1.0],source:a test}")
    tags = {"command": shlex.join([*words, "seed=3", "run.overwrite=true"])}
    group = Group("A", "", tuple(make_run(seed, tags=tags) for seed in (3, 4)))
    assert given_by(shlex.split(group.command)) == [(3, 7, "a test"), (4, 7, "a test")]
    assert given_by([*words, "seed=3,4", "-m"]) == [(3, 7, "a test"), (4, 7, "a test")]


def test_what_an_experiment_expects_is_not_expected_of_its_ablations(make_run):
    expected = {"expected__metric": "success_mean", "expected__interval": "[0.8, 1.0]"}

    def run(arguments, **params):
        tags = {"command": f"python recipes/train.py experiment=dark {arguments}"}
        return make_run(tags=tags, **expected, **params)

    ablation, full = run("+ablation=no_memory", lr=2), run("", lr=1)
    (alone,), _ = make_sections([ablation])
    assert alone.expected is None
    (section,), _ = make_sections([ablation, full])
    assert section.base.runs == (full,)
    assert section.expected.interval == (0.8, 1.0)


DARK = {"expected__metric": "success_mean", "expected__interval": "[0.8, 1.0]"}


@pytest.mark.parametrize(
    "argument",
    ["budget.env_steps=5000", "evaluation.num_episodes=8", "'~encoder.dropout'", "+trials.k=2"],
)
def test_the_experiment_as_written_is_the_base_although_a_changed_one_ran_first(make_run, argument):
    def run(arguments, **params):
        return make_run(
            tags={"command": f"python recipes/train.py experiment=dark {arguments}"},
            **DARK,
            **params,
        )

    changed, full = run(f"{argument} seed=0", x=1), run("seed=0 run.name=a logger=none", x=2)
    (section,), _ = make_sections([changed, full])
    assert section.base.runs == (full,)
    assert section.expected.interval == (0.8, 1.0)
    (alone,), _ = make_sections([changed])
    assert alone.expected is None


@pytest.mark.parametrize(
    "arguments",
    [
        "device=cuda workers.num_processes=4",
        "schedule.autocast=null collector.autocast=bfloat16",
        "schedule.cuda_graph=true collector.cuda_graph=true",
        "encoder.compiled=false collector.compile_policy=true",
        "encoder.checkpoint_layers=true packing=null",
        "evaluation.num_envs=4 evaluation.video_frames=9 run.root=elsewhere checkpoint.keep=1",
        "+ablation=no_memory 'expected.interval=[0,0.6]'",
    ],
)
def test_a_switch_of_speed_or_precision_and_what_the_command_itself_expects_keep_the_verdict(
    make_run, arguments
):
    tags = {"command": f"python recipes/train.py experiment=dark {arguments}"}
    (section,), _ = make_sections([make_run(tags=tags, **DARK)])
    assert section.expected is not None
    (section,), _ = make_sections([make_run(tags={"command": f"{tags['command']} lr=3"}, **DARK)])
    assert (section.expected is None) == ("expected" not in arguments)


def test_who_plays_the_environments_makes_no_other_run(make_run):
    runs = [
        make_run(seed, env__workers__num_processes=seed, workers__num_processes=seed)
        for seed in (0, 4)
    ]
    (section,), _ = make_sections(runs)
    assert [run.seed for run in section.base.runs] == ["0", "4"]
    assert section.details == "size=9"


def test_runs_of_two_recipes_share_no_section_and_the_experiment_expects_nothing_of_the_other(
    make_run,
):
    ppo, train = (
        make_run(
            tags={"command": f"python recipes/{name}.py experiment=dark seed=0"}, loss=name, **DARK
        )
        for name in ("ppo", "train")
    )
    sections, _ = make_sections([ppo, train])
    assert [(section.title, section.base.runs) for section in sections] == [
        ("dark (Maze, yamame ppo)", (ppo,)),
        ("dark (Maze)", (train,)),
    ]
    assert [section.expected is None for section in sections] == [True, False]


def test_a_run_that_was_continued_with_another_budget_is_that_of_the_new_budget(make_run):
    command = "python recipes/train.py seed={} budget.env_steps={}"
    short = {"command": command.format(0, 256), "budget.env_steps": "256"}
    long = {"command": command.format(1, 1024) + " resume=true", "budget.env_steps": "1024"}
    first = make_run(0, tags=short, budget__env_steps=256)
    extended = make_run(1, tags=long, budget__env_steps=256)
    (section,), _ = make_sections([first, extended])
    assert [group.settings["budget.env_steps"] for group in section.groups] == ["256", "1024"]
    assert section.groups[1].command == "yamame train budget.env_steps=1024 seed=1"
