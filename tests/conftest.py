"""One thread: on models this small a second one only waits. Programs that tests start inherit it."""
import os

os.environ["OMP_NUM_THREADS"] = "1"
