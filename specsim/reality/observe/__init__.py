"""Observe: a workload of specsim, sent to a real server.

The client is open loop: a request is sent at its time, whatever the server does with those before
it, and by how much the client itself was late is recorded. What comes back is written as the folder
of a measured run, which ``specsim validate`` reads.
"""

from specsim.reality.observe.client import Options
from specsim.reality.observe.observation import Observation, observe
from specsim.reality.observe.workload import Workload, load_workload

__all__ = ["Observation", "Options", "Workload", "load_workload", "observe"]
