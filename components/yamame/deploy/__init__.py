"""Trained agents outside of training: loading, acting for many sessions, folders, exported graphs.

Only the base dependencies are needed. The environment of training is not, because the file of an
agent describes its observations and actions.
"""

from yamame.deploy.agent import DeployedAgent as DeployedAgent
from yamame.deploy.amago.agent import import_amago as import_amago
from yamame.deploy.interface import Interface as Interface
from yamame.deploy.load import load as load
from yamame.deploy.saved import SavedAgent as SavedAgent
