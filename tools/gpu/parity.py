"""Part ``parity``: compare recorded computations with ordinary ones, and devices with the CPU."""

from collections.abc import Sequence

import torch
from benchmark_sections import Subject
from gpu.job import Job
from gpu.results import ENVIRONMENTS
from gpu.subjects import BFLOAT16, RECORDED, batch_of, collector_of, subject_of
from tensordict import TensorDict


def run(job: Job) -> None:
    """Compare, the most important first."""
    if job.chosen("acting"):
        for sigma in (True, False):
            with job.attempt(f"acting, sigma_reparam={sigma}"):
                acting(job, sigma)
    if job.chosen("losses"):
        with job.attempt("losses"):
            losses(job)
    if job.chosen("environments"):
        for name in ENVIRONMENTS[: None if job.cuda else 1]:
            with job.attempt(name):
                environment(job, name)


def acting(job: Job, sigma: bool) -> None:
    """Compare the actions of a recorded and an ordinary collector, before and after new weights.

    An ordinary collector that keeps its weights shows how much would differ if a recording read old
    ones.
    """
    plain = played(job, (), sigma)
    recorded = played(job, RECORDED, sigma)
    stale = played(job, (), sigma, new_weights=False)
    before, *after = (differing(one, other) for one, other in zip(plain, recorded, strict=True))
    _, *control = (differing(one, other) for one, other in zip(plain, stale, strict=True))
    kind = "with sigma_reparam" if sigma else "without"
    job.note(f"actions that differ before, {kind}", before, wrong=before > 0.03)
    more = {"with_old_weights": min(control), "compared": len(plain[-1])}
    wrong = max(after) > 0.03 or min(control) < 0.1
    job.note(f"actions that differ after new weights, {kind}", max(after), wrong=wrong, **more)


def played(
    job: Job, settings: Sequence[str], sigma: bool, *, new_weights: bool = True
) -> list[torch.Tensor]:
    """Return actions of a collector in three rounds, with new weights before the last two.

    Random numbers are the same in every call. The memory has its full size from the first round on:
    a memory that grows is recorded again, which would hide that an older recording reads older
    weights.
    """
    limit, num_envs = (12, 4) if job.tiny else (40, 16)
    lengths = f"env.time_limit={limit}", f"context_length={limit + 1}"
    subject = subject_of(job, [*settings, *lengths, f"encoder.sigma_reparam={str(sigma).lower()}"])
    collector = collector_of(subject, num_envs, explore=False)
    rounds = []
    for number in range(3):
        if number and new_weights:
            weights = TensorDict.from_module(subject.agent.policy()).data.clone()
            collector.update_policy_weights_(weights.apply(disturbed))
        junk = [
            torch.randn(256, 256, device=job.device) for _ in range(64)
        ]  # fills memory that was freed
        collector.replay.clear()
        for block in range(3):
            torch.manual_seed(3 * number + block)
            collector.collect(num_envs * limit)
        del junk
        rounds.append(torch.cat([data["action"].flatten() for data in collector.replay]).cpu())
    return rounds


def disturbed(weight: torch.Tensor) -> torch.Tensor:
    """Return a matrix with noise, the same on every device; other tensors unchanged."""
    if not weight.is_floating_point() or weight.ndim < 2:
        return weight
    generator = torch.Generator().manual_seed(weight.numel())
    return weight + (0.5 * torch.randn(weight.shape, generator=generator)).to(weight)


def differing(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of the entries that differ."""
    return round(float((one != other).float().mean()), 4) if one.shape == other.shape else 1.0


def losses(job: Job) -> None:
    """Compare losses of recorded and ordinary updates on the same batch."""
    length = 33 if job.tiny else 101
    kinds = {"one by one": (), "recorded": RECORDED, "recorded in bfloat16": (*BFLOAT16, *RECORDED)}
    found = {}
    for name, settings in kinds.items():
        # All critics: a random choice of them would be another one where warm-up draws, too.
        subject = subject_of(job, [*settings, "agent.loss.num_target_critics=4"])
        batch = batch_of(subject, 8, length)
        values = torch.tensor([float(subject.learner.update(batch)["loss"]) for _ in range(12)])
        found[name] = values
        job.note(f"losses, {name}", [round(float(value), 5) for value in values])
    plain = found["one by one"]
    relative = ((found["recorded"] - plain).abs() / plain.abs().clamp(min=1e-3)).max()
    wrong = not float(relative) <= 0.001
    job.note("recorded losses, largest relative difference", float(f"{relative:.3g}"), wrong=wrong)


def environment(job: Job, name: str) -> None:
    """Compare the entries of an environment on the device with those on the CPU."""
    one, other = (play(Subject([f"env={name}"], device)) for device in ("cpu", job.device))
    keys = [str(key) for key in one.keys(True, True) if not torch.equal(one[key], other[key])]
    job.note(f"{name} on both devices", keys or "equal", wrong=bool(keys))


def play(subject: Subject) -> TensorDict:
    """Make sixty steps of 64 environments with actions drawn on the CPU."""
    torch.manual_seed(1)
    env, steps = subject.make_env(64), []
    timestep, spec = env.reset(), env.full_action_spec["action"].to("cpu")
    for _ in range(60):
        timestep["action"] = spec.rand().to(subject.device)
        step, timestep = env.step_and_maybe_reset(timestep)
        steps.append(step["next"].cpu())
    return torch.stack(steps)
