"""No test asks a network for weights: what is not on this machine is not there."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything loads the hub's client, and for the processes that tests start
