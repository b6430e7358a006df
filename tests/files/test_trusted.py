"""What a file names is built only if it is ours, and opens nothing else."""

import pytest
from yamame.checks import SettingError
from yamame.files.trusted import prefixes_of, without_foreign_weights
from yamame.files.untrusted import check_file


def test_no_path_of_weights_that_a_file_names_is_left_wherever_it_stands():
    encoder = {"_target_": "yamame.trajectory.HFEncoder", "path": "/home/you", "keys": None}
    config = {
        "encoder": {**encoder, "keys": encoder, "settings": [encoder, {"a": encoder}]},
        "agent": {"path": "kept"},
    }
    cleared = without_foreign_weights(config)
    assert "/home/you" not in str(cleared)
    assert cleared["agent"] == {"path": "kept"}
    assert str(config).count("/home/you") == 4


def test_one_package_may_be_a_text():
    assert prefixes_of("mylab.") == prefixes_of(["mylab"]) == ("mylab.",)


@pytest.mark.parametrize(
    "name", ["BatchedEnv", "ContextEnv", "GoalEnv", "HostedEnv", "RepeatedTrials"]
)
def test_a_file_names_no_environment_that_cannot_be_built_alone(name):
    with pytest.raises(SettingError, match=rf"^env\._target_: .*yamame_envs\.{name}"):
        check_file({"env": {"_target_": f"yamame_envs.{name}"}})
    check_file({"env": {"_target_": "yamame_envs.MazeRunner"}})
