"""Trained agents outside of training: loading, acting for many streams, folders to send, exported
graphs.

Base dependencies alone. The environment of training is not needed, for the file says what is
observed and done.
"""

from yamame.deploy.agent import DeployedAgent as DeployedAgent
from yamame.deploy.interface import Interface as Interface
from yamame.deploy.load import load as load
from yamame.deploy.saved import SavedAgent as SavedAgent
