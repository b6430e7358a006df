import numpy as np
import pytest
import torch
from yamame_envs.suites.resize import AreaResize

ale_py = pytest.importorskip("ale_py", reason="ale-py is not installed")

from yamame_envs.suites.atari import Atari  # noqa: E402
from yamame_envs.suites.atari_console import Console, find_game  # noqa: E402

NOOP, FIRE = 0, 1


def console(*games, screen="rgb", frame_skip=4, sticky=0.25, life_loss_ends=False):
    return Console(
        games=games or ("pong",),
        screen=screen,
        frame_skip=frame_skip,
        sticky=sticky,
        life_loss_ends=life_loss_ends,
    )


def play(env, seed, steps, *, actions=0):
    """What an episode shows: a list of (observation, reward, over)."""
    rng = np.random.default_rng(actions)
    seen = [(env.reset(seed=seed)[0], 0.0, False)]
    for _ in range(steps):
        observation, reward, over, truncated, _ = env.step(int(rng.integers(18)))
        seen.append((observation, reward, over))
        assert not truncated
        if over:
            break
    return seen


def alike(first, second):
    same = [
        np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(first, second, strict=False)
    ]
    return len(first) == len(second) and all(same)


def cartridge(game, seed=0):
    """A console of ale-py itself, without sticky actions."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    ale.reset_game()
    return ale


class Recorder:
    """Stands in for a console and notes which action every frame was given."""

    def __init__(self, ale):
        self.ale, self.frames = ale, []

    def act(self, action, strength):
        self.frames.append(action.value)
        return self.ale.act(action, strength)

    def __getattr__(self, name):
        return getattr(self.ale, name)


@pytest.mark.parametrize("screen", ["rgb", "rgb_max", "grey", "grey_max"])
def test_without_stickiness_it_is_the_console_itself(screen):
    env, ale = console("breakout", screen=screen, sticky=0.0), cartridge("breakout", seed=77)
    look = ale.getScreenRGB if screen.startswith("rgb") else ale.getScreenGrayscale
    small = AreaResize((210, 160), (84, 84))
    seen = play(env, seed=5, steps=150)
    assert np.array_equal(seen[0][0], small(look()))
    rng, differs = np.random.default_rng(0), False
    for observation, reward, over in seen[1:]:
        action, paid = ale_py.Action(int(rng.integers(18))), 0
        for _ in range(3):
            paid += ale.act(action, 1.0)
        before = look()
        paid += ale.act(action, 1.0)
        frames = np.maximum(before, look()) if screen.endswith("_max") else look()
        assert np.array_equal(observation, small(frames))
        assert (reward, over) == (paid, ale.game_over())
        differs |= not np.array_equal(before, look())
    assert differs  # the two last frames are not always alike: the maximum is tested


def test_the_brighter_of_two_steps_is_shown_without_frame_skip():
    env, ale = console("pong", screen="grey_max", frame_skip=1, sticky=0.0), cartridge("pong")
    small, before = AreaResize((210, 160), (84, 84)), ale.getScreenGrayscale()
    env.reset(seed=0)
    for _ in range(80):
        observation = env.step(FIRE)[0]
        ale.act(ale_py.Action.FIRE, 1.0)
        assert np.array_equal(observation, small(np.maximum(before, ale.getScreenGrayscale())))
        before = ale.getScreenGrayscale()


def test_the_former_action_sticks_frame_by_frame():
    env = console("pong", sticky=0.25)
    env.reset(seed=1)
    recorder = Recorder(env._machine.ale)
    object.__setattr__(env._machine, "ale", recorder)
    stuck, steps = np.zeros(4), 2000
    for step in range(steps):
        held, recorder.frames = env._held.value, []
        action = 3 + (held == 3)  # always another than the one held
        env.step(action)
        stuck += np.array(recorder.frames) == held
        assert set(recorder.frames) <= {held, action}
        assert recorder.frames == sorted(
            recorder.frames, key=lambda frame: frame == action
        )  # no way back
        if step % 500 == 0:
            env._machine.ale.restoreState(env._machine.start)
    expected = 0.25 ** np.arange(1, 5)  # all frames so far have stuck
    error = np.sqrt(expected * (1 - expected) / steps)
    assert (np.abs(stuck / steps - expected) < 4 * error).all()


def test_a_seed_decides_all_of_an_episode():
    env = console("pong", "breakout")
    first = play(env, seed=3, steps=120)
    for other in (4, 5, 6):
        play(env, seed=other, steps=60)
    assert alike(first, play(env, seed=3, steps=120))
    assert alike(first, play(console("pong", "breakout"), seed=3, steps=120))
    same_game = next(s for s in range(4, 50) if env.reset(seed=s)[1] == env.reset(seed=3)[1])
    assert not alike(first, play(env, seed=same_game, steps=120))


def test_two_consoles_do_not_influence_each_other():
    alone = play(console("pong"), seed=0, steps=100)
    env, other = console("pong"), console("pong")
    rng, found = np.random.default_rng(0), [(env.reset(seed=0)[0], 0.0, False)]
    other.reset(seed=9)
    for _ in range(100):
        found.append(env.step(int(rng.integers(18)))[:3])
        other.step(FIRE)
    assert alike(alone, found)


def test_an_episode_begins_anew_after_a_game_was_lost():
    env = console("breakout", sticky=0.0)
    before = play(env, seed=0, steps=30)
    lost = play(env, seed=1, steps=3000)
    assert lost[-1][2]
    assert alike(before, play(env, seed=0, steps=30))


def test_several_games_are_drawn_evenly():
    env = console("pong", "breakout", "qbert")
    drawn = [env.reset(seed=seed)[1]["game"] for seed in range(600)]
    counts = np.array([drawn.count(game) for game in ("pong", "breakout", "qbert")])
    assert (np.abs(counts - 200) < 4 * np.sqrt(600 * 2 / 9)).all()


def test_the_first_life_ends_an_episode_if_asked_to():
    whole = play(console("breakout", sticky=0.0), seed=0, steps=3000)
    life = play(console("breakout", sticky=0.0, life_loss_ends=True), seed=0, steps=3000)
    assert life[-1][2]
    assert len(life) < len(whole) / 2
    assert alike(life[:-1], whole[: len(life) - 1])


def test_games_are_found_by_either_name():
    assert [find_game(n) for n in ("MsPacman", "ms_pacman", "UpNDown")] == [
        "ms_pacman",
        "ms_pacman",
        "up_n_down",
    ]
    with pytest.raises(
        ValueError, match="game must be a game of ale-py, such as pong, got 'Pongg'"
    ):
        find_game("Pongg")


def test_the_start_is_the_same_whatever_the_seed_of_the_console():
    first, second = cartridge("seaquest", seed=1), cartridge("seaquest", seed=2)
    for action in (NOOP, FIRE, 5, 9, 2) * 10:
        first.act(ale_py.Action(action), 1.0)
        second.act(ale_py.Action(action), 1.0)
    assert np.array_equal(first.getRAM(), second.getRAM())


def test_settings_are_checked():
    for settings, message in [
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"sticky": 1.0}, r"sticky must be in \[0, 1\), got 1.0"),
        ({"game": []}, r"game must name at least one game, got \[\]"),
        ({"screen": "blue"}, "screen must be one of .*, got blue"),
        ({"game": "Chess2"}, "game must be a game of ale-py.*, got 'Chess2'"),
    ]:
        with pytest.raises(ValueError, match=f"Atari: {message}"):
            Atari(**settings)


def test_the_rows_are_pictures_with_a_visible_horizon():
    env = Atari(game=["Pong", "Breakout"], num_envs=2, time_limit=5, screen="grey", seed=4)
    td = env.rollout(12, break_when_any_done=False)
    assert td["observation"].shape == (2, 12, 1, 84, 84)
    assert td["observation"].dtype == torch.uint8
    assert td["next", "terminated"][:, 4].all()
    assert not td["next", "truncated"].any()
    assert td["next", "time"][0, 4] == 1.0
    assert env.action_spec.space.n == 18
    env.close()


def test_random_play_of_pong_scores_as_published():
    published = -20.7  # Mnih et al., 2015, random play
    env, rng, returns = console("pong"), np.random.default_rng(0), []
    for seed in range(6):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, over, _, _ = env.step(int(rng.integers(18)))
            total += reward
        returns.append(total)
    error = max(np.std(returns, ddof=1) / np.sqrt(len(returns)), 0.1)
    assert abs(np.mean(returns) - published) < 3 * np.hypot(error, 0.2)
