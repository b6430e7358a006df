"""What is written to disk: atomic files, checkpoints, run directories."""

from yamame.files.atomic import atomic_writer as atomic_writer
from yamame.files.checkpoint import Checkpointer as Checkpointer
from yamame.files.checkpoint import LoadedCheckpoint as LoadedCheckpoint
from yamame.files.run_directory import RunDirectory as RunDirectory
