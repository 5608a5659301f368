"""No test asks a network for weights: what is not on this machine is not there. None writes to the user's cache."""

import atexit
import os
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything loads the hub's client, and for the processes that tests start

_images = tempfile.mkdtemp(prefix="paucal-test-images-")
os.environ["PAUCAL_IMAGE_CACHE"] = _images
atexit.register(shutil.rmtree, _images, ignore_errors=True)
