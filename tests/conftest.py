"""One thread: on models this small a second one only waits. Started programs inherit it."""
import os

os.environ["OMP_NUM_THREADS"] = "1"
