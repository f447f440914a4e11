"""A build in a process of its own, to be killed: `python -m tests.engines.driver ADDRESS FOLDER HOLD_AT`."""

import sys
from pathlib import Path

from crossknn.engines.ray import RayEngine
from tests.engines.world import World

if __name__ == "__main__":
    address, folder, hold_at = sys.argv[1:]
    World(Path(folder), hold_at=int(hold_at)).build(engine=RayEngine(address=address, workers=2, cpus_per_worker=0.6))
